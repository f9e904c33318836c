//go:build race

package main

// raceDetector is whether the daemons of scripts, which are this test's program, are ten times as slow.
const raceDetector = true
