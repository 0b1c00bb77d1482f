"""Figures that others published, for systems that cannot be run here. Never measured by us; other machines and data."""

from __future__ import annotations

from linglue.evaluation.result import Table

SOURCE = "Suwanwimolkul and Komorita, ICMR 2022; Titan RTX; published, not measured here"

_METHOD = "method (published)"
_SCENE_COLUMNS = ("scene", _METHOD, "registered", "points", "track", "error px", "dense points", "matching s")

TABLES = {
    "HPatches, at most 2k SuperPoint keypoints": Table(
        (_METHOD, "matches", "inlier ratio", "parameters", "total ms"),
        (
            ("SuperPoint + MNN", "1082", "0.65", "1.3M", "34"),
            ("SuperGlue", "832", "0.84", "12M", "115"),
            ("SGMNet", "866", "0.80", "31M", "116"),
            ("LoFTR", "4706", "0.87", "11.6M", "213"),
            ("Patch2Pix", "1264", "0.76", "31.6M", "453"),
            ("NCNet", "1480", "0.46", "21.3M", "297"),
            ("D2-Net", "2496", "0.42", "7.6M", "487"),
            ("R2D2", "2052", "0.74", "1.0M", "1755"),
            ("pair-wo-sep-inp (paper)", "715", "0.80", "0.84M", "68"),
            ("pair-wo-sep (paper)", "697", "0.81", "0.84M", "69"),
            ("pair (paper)", "711", "0.80", "0.84M", "74"),
            ("linear (paper)", "673", "0.82", "0.92M", "74"),
            ("pair-large (paper)", "719", "0.80", "12.5M", "89"),
            ("linear-sinkhorn (paper)", "667", "0.76", "–", "–"),
        ),
    ),
    "Time, network / matching in ms": Table(
        (_METHOD, "parameters", "2k", "4k", "8k", "16k"),
        (
            ("SuperGlue", "12M", "53 / 22", "163 / 78", "752 / 292", "3392 / 1162"),
            ("SGMNet", "30M", "70 / 39", "77 / 140", "122 / 562", "341 / 2370"),
            ("pair (paper)", "0.84M", "34 / 6.9", "35 / 9.9", "44 / 22", "100 / 67"),
            ("pair-large (paper)", "12.5M", "51 / 5.2", "45 / 9.7", "96 / 26", "235 / 84"),
        ),
    ),
    "Sparse and dense models, at most 10k SuperPoint keypoints": Table(
        _SCENE_COLUMNS,
        (
            ("Herz-Jesu", "SuperGlue", "8/8", "8459", "4.45", "0.921", "1.139M", "471"),
            ("Herz-Jesu", "SGMNet", "8/8", "9638", "4.16", "0.960", "1.137M", "143"),
            ("Herz-Jesu", "pair-wo-sep-inp (paper)", "8/8", "7299", "4.54", "0.881", "1.143M", "24"),
            ("Herz-Jesu", "pair-wo-sep (paper)", "8/8", "7242", "4.54", "0.872", "1.147M", "24"),
            ("Herz-Jesu", "pair (paper)", "8/8", "7281", "4.53", "0.873", "1.142M", "23"),
            ("Herz-Jesu", "linear (paper)", "8/8", "7118", "4.52", "0.857", "1.147M", "23"),
            ("Herz-Jesu", "pair-large (paper)", "8/8", "7310", "4.53", "0.877", "1.145M", "39"),
            ("Fountain", "SuperGlue", "11/11", "11374", "5.14", "0.961", "1.835M", "790"),
            ("Fountain", "SGMNet", "11/11", "11879", "4.93", "0.959", "1.841M", "238"),
            ("Fountain", "pair-wo-sep-inp (paper)", "11/11", "10044", "5.17", "0.909", "1.831M", "41"),
            ("Fountain", "pair-wo-sep (paper)", "11/11", "9980", "5.16", "0.905", "1.831M", "42"),
            ("Fountain", "pair (paper)", "11/11", "9969", "5.14", "0.903", "1.829M", "41"),
            ("Fountain", "linear (paper)", "11/11", "9802", "5.12", "0.890", "1.826M", "43"),
            ("Fountain", "pair-large (paper)", "11/11", "10039", "5.12", "0.901", "1.833M", "71"),
            ("South-Building", "SuperGlue", "128/128", "114.4k", "7.90", "0.947", "12.5M", "40223"),
            ("South-Building", "SGMNet", "128/128", "132.2k", "6.95", "0.979", "12.4M", "10867"),
            ("South-Building", "pair-wo-sep-inp (paper)", "128/128", "94.8k", "8.31", "0.837", "12.4M", "1483"),
            ("South-Building", "pair-wo-sep (paper)", "128/128", "94.2k", "8.31", "0.832", "12.4M", "1386"),
            ("South-Building", "pair (paper)", "128/128", "95.1k", "8.27", "0.836", "12.5M", "1329"),
            ("South-Building", "linear (paper)", "128/128", "92.2k", "8.32", "0.820", "12.4M", "1443"),
            ("South-Building", "pair-large (paper)", "128/128", "96.1k", "8.24", "0.841", "12.4M", "2771"),
        ),
        labels=2,
    ),
    "Medium scenes": Table(
        ("scene", _METHOD, "registered", "track", "error px", "matching h:min:s"),
        (
            ("Madrid Metropolis", "MNN + ratio", "513/1344", "7.28", "1.066", "0:04:51"),
            ("Madrid Metropolis", "AdaLAM", "519/1344", "8.29", "1.113", "0:10:44"),
            ("Madrid Metropolis", "SuperGlue-10", "732/1344", "7.59", "1.240", "5:15:30"),
            ("Madrid Metropolis", "SGMNet-10", "759/1344", "6.99", "1.211", "5:27:46"),
            ("Madrid Metropolis", "pair (paper)", "523/1344", "8.51", "1.118", "1:22:36"),
            ("Gendarmenmarkt", "MNN + ratio", "1034/1463", "6.57", "1.069", "–"),
            ("Gendarmenmarkt", "AdaLAM", "1041/1463", "8.05", "1.135", "–"),
            ("Gendarmenmarkt", "SuperGlue-10", "1060/1463", "8.36", "1.222", "–"),
            ("Gendarmenmarkt", "SGMNet-10", "1124/1463", "7.53", "1.203", "–"),
            ("Gendarmenmarkt", "pair (paper)", "1030/1463", "7.92", "1.116", "–"),
            ("Tower of London", "MNN + ratio", "733/1576", "7.44", "1.014", "–"),
            ("Tower of London", "AdaLAM", "777/1576", "8.46", "1.044", "–"),
            ("Tower of London", "SuperGlue-10", "941/1576", "7.27", "1.145", "–"),
            ("Tower of London", "SGMNet-10", "879/1576", "6.78", "1.145", "–"),
            ("Tower of London", "pair (paper)", "779/1576", "8.49", "1.038", "–"),
        ),
        labels=2,
    ),
    "Aachen night, 98 queries, 4k keypoints, %": Table(
        (_METHOD, "0.25 m 2°", "0.5 m 5°", "5 m 10°"),
        (
            ("MNN", "71.4", "78.6", "87.8"),
            ("OANet", "77.6", "90.8", "100"),
            ("AdaLAM", "76.5", "86.7", "95.9"),
            ("SuperGlue", "79.6", "90.8", "100"),
            ("SGMNet", "77.6", "88.8", "99.0"),
            ("pair-wo-sep-inp (paper)", "77.6", "84.7", "94.9"),
            ("pair-wo-sep (paper)", "78.6", "86.7", "95.9"),
            ("pair (paper)", "80.6", "86.7", "95.9"),
            ("linear (paper)", "77.6", "84.7", "92.9"),
            ("pair-large (paper)", "78.6", "87.8", "96.9"),
        ),
    ),
    "Ablation on Aachen night, % within 0.25 m 2°, by number of keypoints": Table(
        (_METHOD, "1k", "2k", "3k", "4k"),
        (
            ("AdaLAM", "41.8", "71.4", "79.6", "76.5"),
            ("linear, no filter (paper)", "61.2", "72.4", "73.5", "76.5"),
            ("pair, no filter (paper)", "66.3", "74.5", "73.5", "76.5"),
            ("linear (paper)", "48.0", "73.5", "76.5", "77.6"),
            ("pair (paper)", "58.2", "72.4", "78.6", "80.6"),
            ("pair-large (paper)", "63.3", "73.5", "74.5", "78.6"),
            ("pair-wo-sep-inp (paper)", "59.2", "75.5", "74.5", "77.6"),
            ("pair-wo-sep (paper)", "57.1", "71.4", "74.5", "78.6"),
        ),
    ),
}
