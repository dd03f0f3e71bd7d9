//go:build !mutant_own_lanes

package mqttfront

import "fmt"

// laneID returns the client id of an outgoing connection. It is the same on every node, so that a new leader takes the connection
// over from the old one.
func (f *Front) laneID(number int) string { return fmt.Sprintf("%s-out-%d", f.config.Cluster, number) }
