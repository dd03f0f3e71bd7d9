//go:build mutant_unlogged_refusal

package mqttfront

// mayRefuseUnlogged refuses everything without a word in the log.
func mayRefuseUnlogged(*request) bool { return true }
