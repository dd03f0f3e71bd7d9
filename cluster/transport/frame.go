package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is
//
//	length    4 bytes, big endian, of what follows
//	code      1 byte: the method of a request, 0 for an answer, 1 for an error
//	number    8 bytes, big endian: an answer has that of its request
//	body
const (
	frameHeader = 4 + 1 + 8
	maxFrame    = 32 << 20
	codeAnswer  = 0
	codeError   = 1
)

// errTooLarge says that a message does not fit into a frame.
var errTooLarge = errors.New("the message is too large")

func writeFrame(w io.Writer, code byte, number uint64, body []byte) error {
	frame := make([]byte, 0, frameHeader+len(body))
	frame = binary.BigEndian.AppendUint32(frame, uint32(frameHeader-4+len(body)))
	frame = append(frame, code)
	frame = binary.BigEndian.AppendUint64(frame, number)
	_, err := w.Write(append(frame, body...))
	return err
}

// readFrame reads a frame of at most limit bytes. It allocates memory in steps, as bytes arrive,
// and not at once for the claimed length.
func readFrame(r *bufio.Reader, limit uint32) (code byte, number uint64, body []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, 0, nil, err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length < frameHeader-4 || length > limit {
		return 0, 0, nil, fmt.Errorf("a frame of %d bytes", length)
	}
	const step = 256 << 10
	for left := int(length) - (frameHeader - 4); left > 0; {
		part := min(left, step)
		start := len(body)
		body = append(body, make([]byte, part)...)
		if _, err := io.ReadFull(r, body[start:]); err != nil {
			return 0, 0, nil, err
		}
		left -= part
	}
	return header[4], binary.BigEndian.Uint64(header[5:]), body, nil
}
