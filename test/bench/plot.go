package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// series is one line of a plot.
type series struct {
	name string
	x, y []float64
}

// chart is a plot with logarithmic axes, as SVG.
type chart struct {
	title, x, y string
	series      []series
}

const (
	chartWidth, chartHeight                             = 960, 560
	chartLeft, chartRight, chartTop, chartBottom, entry = 80, 330, 50, 60, 20
)

// palette is told apart by the colour-blind, too (Okabe and Ito), and repeats with dashes.
func palette(i int) (colour, dash string) {
	colours := []string{"#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"}
	dashes := []string{"", "6 3", "2 3"}
	return colours[i%len(colours)], dashes[i/len(colours)%len(dashes)]
}

// axis maps values to positions, logarithmically.
type axis struct {
	low, high float64 // logarithms
	from, to  float64
}

func newAxis(values []float64, from, to float64) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, math.Log10(v)), max(high, math.Log10(v))
	}
	if low > high {
		low, high = 0, 1
	}
	return axis{low - 0.05, high + 0.05, from, to}
}

func (a axis) at(value float64) float64 {
	return a.from + (math.Log10(value)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// ticks returns 1, 2 and 5 times the powers of ten that are on the axis.
func (a axis) ticks() (ticks []float64) {
	for power := math.Floor(a.low); power <= a.high; power++ {
		for _, digit := range []float64{1, 2, 5} {
			if value := digit * math.Pow(10, power); math.Log10(value) >= a.low && math.Log10(value) <= a.high {
				ticks = append(ticks, value)
			}
		}
	}
	return ticks
}

func (c *chart) svg() string {
	var xs, ys []float64
	for _, s := range c.series {
		xs, ys = append(xs, s.x...), append(ys, s.y...)
	}
	x := newAxis(xs, chartLeft, chartWidth-chartRight)
	y := newAxis(ys, chartHeight-chartBottom, chartTop)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, chartHeight)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	text := func(px, py float64, anchor, more, value string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", px, py, anchor, more, html.EscapeString(value))
	}
	text(chartLeft, 28, "start", ` font-size="16"`, c.title)
	for _, tick := range x.ticks() {
		at := x.at(tick)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/>`+"\n", at, chartTop, at, chartHeight-chartBottom)
		text(at, chartHeight-chartBottom+18, "middle", "", short(tick))
	}
	for _, tick := range y.ticks() {
		at := y.at(tick)
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", chartLeft, at, chartWidth-chartRight, at)
		text(chartLeft-8, at+4, "end", "", short(tick))
	}
	text((chartLeft+chartWidth-chartRight)/2, chartHeight-16, "middle", "", c.x)
	text(20, chartHeight/2, "middle", fmt.Sprintf(` transform="rotate(-90 20 %d)"`, chartHeight/2), c.y)
	for i, s := range c.series {
		colour, dash := palette(i)
		var points []string
		for j := range s.x {
			px, py := x.at(s.x[j]), y.at(s.y[j])
			points = append(points, fmt.Sprintf("%.1f,%.1f", px, py))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, py, colour)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", strings.Join(points, " "), colour, dash)
		at := float64(chartTop + i*entry)
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n",
			chartWidth-chartRight+20, at, chartWidth-chartRight+50, at, colour, dash)
		text(chartWidth-chartRight+58, at+4, "start", "", s.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// short writes 20000 as 20k.
func short(value float64) string {
	switch {
	case value >= 1e6:
		return fmt.Sprintf("%gM", value/1e6)
	case value >= 1e3:
		return fmt.Sprintf("%gk", value/1e3)
	default:
		return fmt.Sprintf("%g", value)
	}
}

// plot draws p99 latency against throughput, a line for each system and workload, a point for each number of requests under way.
func (c *comparison) plot() string {
	drawn := chart{
		title: fmt.Sprintf("p99 latency against throughput, %d members, at %d to %d requests under way", c.Nodes, slices.Min(c.outstanding()), slices.Max(c.outstanding())),
		x:     "requests per second", y: "p99, milliseconds",
	}
	for _, name := range c.series() {
		s := series{name: name[0] + ", " + name[1]}
		for _, n := range c.outstanding() {
			if p := c.points[pointKey{name[0], name[1], n}]; p != nil && median(p.Rates) > 0 && median(p.P99) > 0 {
				s.x, s.y = append(s.x, median(p.Rates)), append(s.y, median(p.P99))
			}
		}
		drawn.series = append(drawn.series, s)
	}
	return drawn.svg()
}

// latencies draws p50 against the number of requests under way.
func (c *comparison) latencies() string {
	drawn := chart{title: fmt.Sprintf("p50 latency, %d members", c.Nodes), x: "requests under way", y: "p50, milliseconds"}
	for _, name := range c.series() {
		s := series{name: name[0] + ", " + name[1]}
		for _, n := range c.outstanding() {
			if p := c.points[pointKey{name[0], name[1], n}]; p != nil && median(p.P50) > 0 {
				s.x, s.y = append(s.x, float64(n)), append(s.y, median(p.P50))
			}
		}
		drawn.series = append(drawn.series, s)
	}
	return drawn.svg()
}
