package mqttconn

import "syscall"

// setSocketLowWater sets SO_RCVLOWAT, socket(7), which epoll heeds as well; it is an optimisation, so errors do not matter.
func setSocketLowWater(fd uintptr, bytes int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
}
