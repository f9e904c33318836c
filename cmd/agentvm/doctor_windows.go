package main

// checkLimits finds nothing: Windows has no limits of this kind.
func checkLimits() []finding { return nil }

func privileges() string { return "the current user" }
