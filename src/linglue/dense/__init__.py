"""Dense points: depth of every image by plane sweep over its neighbours, kept where they agree, fused into one cloud"""
