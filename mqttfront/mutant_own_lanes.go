//go:build mutant_own_lanes

package mqttfront

import "fmt"

// laneID gives every node connections of its own: nobody takes over anything.
func (f *Front) laneID(number int) string {
	return fmt.Sprintf("%s-%s-out-%d", f.config.Cluster, f.config.Node, number)
}
