package amd64

import "agentvm/internal/machine/a64"

// Opcodes of AES-NI, PCLMULQDQ and SHA-NI. The last have no prefix.
const (
	aesInverseMix  = 0x38db
	aesEncrypt     = 0x38dc
	aesEncryptLast = 0x38dd
	aesDecryptLast = 0x38df
	carryless      = 0x3a44
	shaRounds      = 0x38cb
	shaMessage1    = 0x38cc
	shaMessage2    = 0x38cd
)

// a64Crypto translates AES, SHA-256 and the carry-less product. Those of SHA-1 differ too much from the host's: its have the constants in them.
func a64Crypto(row *a64.Instruction) a64Emitter {
	switch row.Name {
	case "aese", "aesd": // the host adds the key last
		op := aesEncryptLast
		if row.Name == "aesd" {
			op = aesDecryptLast
		}
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rd()))
			t.vector(vectorXor, xmm0, t.vectorAt(w.Rn()))
			t.vectors(vectorXor, xmm1, xmm1)
			t.vectors(op, xmm0, xmm1)
			t.setVector(w.Rd(), true)
		}
	case "aesmc": // a last round of decryption is undone by a round of encryption, which leaves the mixing
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
			t.vectors(vectorXor, xmm1, xmm1)
			t.vectors(aesDecryptLast, xmm0, xmm1)
			t.vectors(aesEncrypt, xmm0, xmm1)
			t.setVector(w.Rd(), true)
		}
	case "aesimc":
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(aesInverseMix, xmm0, t.vectorAt(w.Rn()))
			t.setVector(w.Rd(), true)
		}
	case "pmull.q":
		return func(t *a64Translator, w a64.Word) {
			half := byte(0)
			if w.Bit(30) {
				half = 0x11 // of both the upper
			}
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rn()))
			t.vector(carryless, xmm0, t.vectorAt(w.Rm()))
			t.bytes(half)
			t.setVector(w.Rd(), true)
		}
	case "sha256h":
		return func(t *a64Translator, w a64.Word) { t.sha256(w, w.Rd(), w.Rn(), 0x6d) }
	case "sha256h2":
		return func(t *a64Translator, w a64.Word) { t.sha256(w, w.Rn(), w.Rd(), 0x6c) }
	case "sha256su0":
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm0, t.vectorAt(w.Rd()))
			t.vector(vectorLoad, xmm1, t.vectorAt(w.Rn()))
			t.sha(shaMessage1, xmm0, xmm1)
			t.setVector(w.Rd(), true)
		}
	case "sha256su1":
		return func(t *a64Translator, w a64.Word) {
			t.floatOn()
			t.vector(vectorLoad, xmm1, t.vectorAt(w.Rm()))
			t.vectors(vectorLoad, xmm0, xmm1)
			t.vector(vectorAlign, xmm0, t.vectorAt(w.Rn()))
			t.bytes(4)
			t.vector(addSizes[2], xmm0, t.vectorAt(w.Rd()))
			t.sha(shaMessage2, xmm0, xmm1)
			t.setVector(w.Rd(), true)
		}
	}
	return nil
}

// sha256 does four rounds. The guest has the state as ABCD and EFGH, and wants one of them, which `unpack` takes out: the host has it as ABEF and
// CDGH, in the opposite order, and makes two rounds at a time.
func (t *a64Translator) sha256(w a64.Word, abcd, efgh uint8, unpack int) {
	const (
		swap       = 0xb1       // the words of each half
		low, high  = 0x6c, 0x6d // halves of both
		abef, cdgh = xmm1, xmm2
	)
	t.floatOn()
	t.vector(vectorLoad, abef, t.vectorAt(efgh))
	t.vectors(vectorLoad, cdgh, abef)
	t.vector(low, abef, t.vectorAt(abcd))
	t.vector(high, cdgh, t.vectorAt(abcd))
	t.shuffle(abef, abef, swap)
	t.shuffle(cdgh, cdgh, swap)
	t.vector(vectorLoad, xmm0, t.vectorAt(w.Rm()))
	t.sha(shaRounds, cdgh, abef) // which is the next ABEF, and what was that the next CDGH
	t.shuffle(xmm0, xmm0, upperHalf)
	t.sha(shaRounds, abef, cdgh)
	t.shuffle(xmm0, abef, swap)
	t.shuffle(xmm3, cdgh, swap)
	t.vectors(unpack, xmm0, xmm3)
	t.setVector(w.Rd(), true)
}

// sha is an operation of SHA-NI on two vector registers.
func (t *a64Translator) sha(op int, x, y register) {
	t.bytes(rex(false, x, 0, y), 0x0f)
	t.opcode(op)
	t.bytes(0xc0 | low(x)<<3 | low(y))
}
