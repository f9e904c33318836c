//go:build unix && !linux

package emulator

const mapNoReserve = 0 // these systems overcommit without being asked
