"""Training, export and evaluation of universal sentence encoders in TensorFlow.

Importing this package is cheap: it pulls in neither TensorFlow nor Keras.
"""

__version__ = "0.1.0"
