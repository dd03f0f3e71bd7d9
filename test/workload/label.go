package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Long values are written down as labels: a word that nobody else ever writes, and the size.

// maxLabel is the longest value that is written down as it is.
const maxLabel = 128

// content returns the value that a label stands for: the label itself, filled up to the size. A size of 0 is the label's.
func content(label string, size int) string {
	if size <= len(label) {
		return label
	}
	return label + strings.Repeat("~", size-len(label))
}

// label returns what stands for a value: for a long one that content has made its label, for any other its hash.
func label(value []byte) []byte {
	if len(value) <= maxLabel {
		return append([]byte(nil), value...)
	}
	text := strings.TrimRight(string(value), "~")
	if len(text) <= maxLabel && strings.HasSuffix(text, fmt.Sprintf(":%d", len(value))) {
		return []byte(text)
	}
	sum := sha256.Sum256(value)
	return []byte(fmt.Sprintf("%d bytes that nobody wrote, %s", len(value), hex.EncodeToString(sum[:8])))
}
