//go:build mutant_mark_high

package mqttfront

// markAfter sets the mark one too high.
func markAfter(index uint64) uint64 { return index + 1 }
