"""Tools that every part uses: files, arrays, progress bars, devices, workers, Beam."""
