package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// In the history a long value, or key, is recorded as its label: "<unique word>:<size>".

// maxLabel is the size in bytes of the longest value that the history has in full.
const maxLabel = 128

// content returns the value that a label stands for: the label itself, filled up to the size. If
// the size is at most the label's, the value is the label itself.
func content(label string, size int) string {
	if size <= len(label) {
		return label
	}
	return label + strings.Repeat("~", size-len(label))
}

// label returns what is recorded for a value: up to maxLabel bytes the value itself; for a longer
// one that content made its label; for any other longer one its size and a hash.
func label(value []byte) []byte {
	if len(value) <= maxLabel {
		return append([]byte(nil), value...)
	}
	text := strings.TrimRight(string(value), "~")
	if len(text) <= maxLabel && strings.HasSuffix(text, fmt.Sprintf(":%d", len(value))) {
		return []byte(text)
	}
	sum := sha256.Sum256(value)
	return []byte(fmt.Sprintf("%d bytes that nobody wrote, %s", len(value),
		hex.EncodeToString(sum[:8])))
}
