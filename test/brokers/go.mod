module holdfast/test/brokers

go 1.26.8

require holdfast v0.0.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/eclipse/paho.golang v0.23.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace holdfast => ../..
