// Package tomlfile reads a TOML document with the position of each value, so that an error about a value says where that is, and an edit
// leaves the rest as it is. The parser, and the ranges of keys and scalars, are go-toml's. That has no ranges for arrays and inline tables, which
// package tomlfile finds by what may be around them: white space, comments and commas.
package tomlfile
