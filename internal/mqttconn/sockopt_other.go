//go:build !linux

package mqttconn

// setSocketLowWater does nothing: only on Linux is it known that the poller heeds SO_RCVLOWAT.
func setSocketLowWater(uintptr, int) {}

// setQuickAck does nothing.
func setQuickAck(uintptr) {}
