"""Where training pairs come from. Each source draws groups of images with the correspondences between them.

interface       what a source is, and what it returns
ground_truth    which keypoints of two images are partners, by the interface's mappers
homography      synthetic: views of a flat canvas of images
parallax        synthetic: views of a random scene with depth (`world` builds it, `renderer` draws it)
sfm             real: image sets reconstructed by COLMAP (`tracks`: what a reconstruction knows about a keypoint)
teacher         real: image sets labelled by a learned matcher (`labels` makes the labels)
megadepth       real: the MegaDepth data set (`megadepth_info` reads its index files)
"""
