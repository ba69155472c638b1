"""The models of one engine process: their engines, and loading, replacing and unloading them.

They import the engines that serve one model. Within the engine, `startup` alone imports them.
"""
