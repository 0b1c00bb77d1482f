"""Figures that others published, for systems that cannot be run here. Never measured by us; other machines and data."""

from __future__ import annotations

from linglue.evaluation.result import Table

SOURCE = "Suwanwimolkul and Komorita, ICMR 2022; Titan RTX; published, not measured here"

TABLES = {
    "HPatches, at most 2k SuperPoint keypoints": Table(
        ("method (published)", "matches", "inlier ratio", "parameters", "total ms"),
        (
            ("SuperPoint + MNN", "1082", "0.65", "1.3M", "34"),
            ("SuperGlue", "832", "0.84", "12M", "115"),
            ("SGMNet", "866", "0.80", "31M", "116"),
            ("LoFTR", "4706", "0.87", "11.6M", "213"),
            ("Patch2Pix", "1264", "0.76", "31.6M", "453"),
            ("NCNet", "1480", "0.46", "21.3M", "297"),
            ("D2-Net", "2496", "0.42", "7.6M", "487"),
            ("R2D2", "2052", "0.74", "1.0M", "1755"),
            ("pair (paper)", "711", "0.80", "0.84M", "74"),
            ("linear (paper)", "673", "0.82", "0.92M", "74"),
        ),
    ),
    "Time, network / matching in ms": Table(
        ("method (published)", "parameters", "2k", "4k", "8k", "16k"),
        (
            ("SuperGlue", "12M", "53 / 22", "163 / 78", "752 / 292", "3392 / 1162"),
            ("SGMNet", "30M", "70 / 39", "77 / 140", "122 / 562", "341 / 2370"),
            ("pair (paper)", "0.84M", "34 / 6.9", "35 / 9.9", "44 / 22", "100 / 67"),
            ("pair-large (paper)", "12.5M", "51 / 5.2", "45 / 9.7", "96 / 26", "235 / 84"),
        ),
    ),
    "Aachen night, 98 queries, 4k keypoints, %": Table(
        ("method (published)", "0.25 m 2°", "0.5 m 5°", "5 m 10°"),
        (
            ("MNN", "71.4", "78.6", "87.8"),
            ("OANet", "77.6", "90.8", "100"),
            ("AdaLAM", "76.5", "86.7", "95.9"),
            ("SuperGlue", "79.6", "90.8", "100"),
            ("SGMNet", "77.6", "88.8", "99.0"),
            ("pair (paper)", "80.6", "86.7", "95.9"),
            ("linear (paper)", "77.6", "84.7", "92.9"),
        ),
    ),
}
