package jit

import (
	"maps"
	"sync"
)

// usage says which integer registers an instruction reads and writes.
type usage struct{ rd, rs1, rs2 bool }

// emitter writes the code of one kind of instruction. The state it returns is that behind the instruction, which is not
// yet among the pending ones.
type emitter struct {
	usage  usage
	leaves bool // the region may be left before it
	emit   func(g *generator, i *instruction, s state) state

	changesTLB bool // what was looked up before it is not known behind it
}

var (
	usesUpper     = usage{rd: true}
	usesImmediate = usage{rd: true, rs1: true}
	usesRegisters = usage{rd: true, rs1: true, rs2: true}
	usesPair      = usage{rs1: true, rs2: true}
)

// emitters has every instruction that regions execute, except branches and jumps. What is not here is left to the
// interpreter.
var emitters = sync.OnceValue(allEmitters) // not at each start of the program

func allEmitters() map[string]*emitter {
	all := map[string]*emitter{}
	for _, some := range []map[string]*emitter{
		integerEmitters(), multiplyEmitters(), bitEmitters(), memoryEmitters(), atomicEmitters(), floatEmitters(), systemEmitters(),
	} {
		maps.Copy(all, some)
	}
	return all
}

func (i *instruction) usage() usage {
	switch i.flow() {
	case flowBranch:
		return usesPair
	case flowJump:
		return usesUpper
	case flowIndirect:
		return usesImmediate
	}
	return emitters()[i.name].usage
}

func (g *generator) emit(i *instruction, s state) state { return emitters()[i.name].emit(g, i, s) }

// pure is an instruction whose only effect is the value that push leaves on the stack, for rd.
func pure(uses usage, push func(g *generator, i *instruction)) *emitter {
	return &emitter{usage: uses, leaves: false, emit: func(g *generator, i *instruction, s state) state {
		if i.Rd != 0 {
			push(g, i)
			g.setX(i.Rd)
		}
		return s
	}}
}
