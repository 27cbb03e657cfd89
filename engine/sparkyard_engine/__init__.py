"""What runs inside the engine image, next to SGLang: the plug-in, the guard and the Engram reader."""
