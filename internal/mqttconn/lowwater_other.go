//go:build !linux

package mqttconn

// setLowWater does nothing: what it is for is known of Linux only.
func setLowWater(uintptr, int) {}
