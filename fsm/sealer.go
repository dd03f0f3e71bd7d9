package fsm

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
)

// sealer makes and opens the continuation tokens of SCAN. A token holds the key after which the
// next page begins. The client may not be allowed to read that key, so the token is encrypted. A
// MAC keeps a client from making a token for a key of its choice. The secret is part of the state:
// every member can open a token, and no member stores anything for it. Equal keys give equal
// tokens.
type sealer struct {
	mac    []byte // key of the HMAC
	stream cipher.Block
}

// A token is its format in one byte, a MAC, and the encrypted text: the key, a byte 1, and as many
// zeros as make the length a multiple of tokenBlock. Like a format on the disk it changes only with
// its number.
const (
	tokenFormat = 1
	tokenMAC    = aes.BlockSize
	tokenHeader = 1 + tokenMAC
	tokenBlock  = 128
)

func newSealer(secret uint64) *sealer {
	derive := func(use string) []byte {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("holdfast continuation token "+
			use), secret))
		return sum[:]
	}
	block, err := aes.NewCipher(derive("key"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	return &sealer{mac: derive("mac"), stream: block}
}

func (s *sealer) sum(text []byte) []byte {
	h := hmac.New(sha256.New, s.mac)
	h.Write(text)
	return h.Sum(nil)[:tokenMAC]
}

// seal returns the token of a key, which is not empty.
func (s *sealer) seal(after string) string {
	text := make([]byte, (len(after)/tokenBlock+1)*tokenBlock)
	text[copy(text, after)] = 1
	sum := s.sum(text)
	token := make([]byte, tokenHeader+len(text))
	token[0] = tokenFormat
	copy(token[1:], sum)
	cipher.NewCTR(s.stream, sum).XORKeyStream(token[tokenHeader:], text)
	return string(token)
}

// open returns the key of a token, and whether the token is one that seal makes.
func (s *sealer) open(token string) (after string, valid bool) {
	if len(token) <= tokenHeader || token[0] != tokenFormat {
		return "", false
	}
	sum, text := []byte(token[1:tokenHeader]), make([]byte, len(token)-tokenHeader)
	cipher.NewCTR(s.stream, sum).XORKeyStream(text, []byte(token[tokenHeader:]))
	if subtle.ConstantTimeCompare(sum, s.sum(text)) != 1 {
		return "", false
	}
	key, ends := bytes.CutSuffix(bytes.TrimRight(text, "\x00"), []byte{1})
	return string(key), ends && len(key) > 0
}
