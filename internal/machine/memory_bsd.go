//go:build unix && !linux

package machine

const mapNoReserve = 0 // these systems overcommit without being asked
