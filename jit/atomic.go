package jit

func atomicEmitters() map[string]*emitter { return nil }
