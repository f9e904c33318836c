// Package upgrade lets a program of an earlier version make each thing that a store keeps, and this version use and remove it: `make
// upgrade-test`. Nothing may be lost; when this version cannot use something as it is, the error says what works instead.
package upgrade
