// Package upgrade has a program of an earlier version make each thing that a store keeps, and this one use and remove it: `make
// upgrade-test`. Nothing may be lost; what this version cannot take over as it is says what works instead.
package upgrade
