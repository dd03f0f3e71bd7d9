//go:build !linux

package mqttconn

// setSocketLowWater does nothing: what it is for is known of Linux only.
func setSocketLowWater(uintptr, int) {}
