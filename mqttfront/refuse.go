//go:build !mutant_unlogged_refusal

package mqttfront

// mayRefuseUnlogged reports whether a request may be told that the service is overloaded without a word in the log: nobody else holds
// it, or executing it later has no effect.
func mayRefuseUnlogged(r *request) bool { return r.read || r.command.ID.IsZero() }
