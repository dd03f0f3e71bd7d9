package workload

import (
	"fmt"
	"testing"
)

// A written value of up to maxLabel bytes is recorded in full. A longer one is recorded as the
// label that content made it from.
func TestLabelsRestoreTheirValue(t *testing.T) {
	for _, size := range []int{0, 1, 20, maxLabel, maxLabel + 1, 1 << 20} {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			name := "large-1.17:129"
			if size > maxLabel+1 {
				name = "large-1.17:1048576"
			}
			value := content(name, size)
			got := string(label([]byte(value)))
			want := name
			if size <= maxLabel {
				want = value
			}
			if got != want {
				t.Errorf("size %d: %q; want %q", size, got, want)
			}
		})
	}
	if got := string(label(make([]byte, 1000))); got == string(make([]byte, 1000)) ||
		len(got) > maxLabel {
		t.Errorf("a value that nobody wrote: %q", got)
	}
}
