"""Languages of LASER's Tatoeba: maps three-letter codes to two-letter codes."""

from __future__ import annotations

# ISO 639-3 to 639-1 for the languages of LASER's Tatoeba that have both codes.
# Estonian, Swahili, Latvian, Malay, Norwegian and Chinese have the code of their
# largest variety.
_SHORT = dict(
    pair.split(":")
    for pair in (
        "afr:af amh:am ara:ar aze:az bel:be ben:bn bos:bs bre:br bul:bg cat:ca ces:cs "
        "cmn:zh cor:kw cym:cy dan:da deu:de ell:el eng:en epo:eo est:et eus:eu fao:fo "
        "fin:fi fra:fr fry:fy gla:gd gle:ga glg:gl heb:he hin:hi hrv:hr hun:hu hye:hy "
        "ido:io ile:ie ina:ia ind:id isl:is ita:it jav:jv jpn:ja kat:ka kaz:kk khm:km "
        "kor:ko kur:ku lat:la lit:lt lvs:lv mal:ml mar:mr mkd:mk mon:mn nld:nl nno:nn "
        "nob:nb oci:oc pes:fa pol:pl por:pt ron:ro rus:ru slk:sk slv:sl spa:es sqi:sq "
        "srp:sr swe:sv swh:sw tam:ta tat:tt tel:te tgl:tl tha:th tuk:tk tur:tr uig:ug "
        "ukr:uk urd:ur uzb:uz vie:vi xho:xh yid:yi zsm:ms"
    ).split()
)


def short(code: str) -> str:
    """The two-letter code of a language, or `code` itself if the table lacks it."""
    return _SHORT.get(code, code)
