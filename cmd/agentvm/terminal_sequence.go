package main

// sequence follows the escape sequences (ECMA-48) that a terminal sends: keys such as the arrows, and answers to questions.
type sequence struct {
	state  sequenceState
	length int
}

type sequenceState byte

const (
	outsideSequence sequenceState = iota
	afterEscape
	inControl    // after ESC [
	inString     // after ESC ], P, ^ or _
	stringEscape // after ESC in a string
)

// maxSequence is how many bytes a sequence may have. One that never ends by itself ends there.
const maxSequence = 4096

// seen says what a byte of the terminal's input means.
type seen byte

const (
	plainByte seen = iota
	partOfSequence
	terminalAnswer // the last byte of an answer or a report of the terminal
	typedSequence  // the last byte of a key
)

const (
	bell   = 0x07
	escape = 0x1b
)

func (s *sequence) next(b byte) seen {
	s.length++
	// A user who typed the beginning of a sequence must be able to continue: no sequence has these.
	if b == ctrlC || b == '\r' || b == '\n' || s.length > maxSequence {
		s.state = outsideSequence
	}
	switch s.state {
	case afterEscape:
		return s.afterEscape(b)
	case inControl:
		return s.inControl(b)
	case inString, stringEscape:
		return s.inString(b)
	}
	s.length = 0
	if b == escape {
		s.state = afterEscape
		return partOfSequence
	}
	return plainByte
}

func (s *sequence) afterEscape(b byte) seen {
	switch b {
	case '[':
		s.state = inControl
	case ']', 'P', '^', '_':
		s.state = inString
	case escape:
	default:
		s.state = outsideSequence
		return typedSequence
	}
	return partOfSequence
}

// inControl ends a control sequence with its last byte, which says what it is. F3 with a modifier ends as a position of the cursor
// does, and is taken for one.
func (s *sequence) inControl(b byte) seen {
	if b >= 0x20 && b < 0x40 {
		return partOfSequence
	}
	s.state = outsideSequence
	switch b {
	case 'R', 'c', 'n', // where the cursor is, what the terminal is, how it is
		'x', 'y', 't', // its parameters, modes and size
		'I', 'O': // focus came and went
		return terminalAnswer
	}
	return typedSequence
}

func (s *sequence) inString(b byte) seen {
	switch {
	case b == bell, s.state == stringEscape && b == '\\':
		s.state = outsideSequence
		return terminalAnswer
	case b == escape:
		s.state = stringEscape
	default:
		s.state = inString
	}
	return partOfSequence
}
