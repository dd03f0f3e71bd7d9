package report

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

// canvas is a picture that is being drawn.
type canvas struct {
	*image.RGBA
	face font.Face
}

func newCanvas(width, height int) (*canvas, error) {
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, err
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: 12, DPI: 96, Hinting: font.HintingFull})
	if err != nil {
		return nil, err
	}
	c := &canvas{image.NewRGBA(image.Rect(0, 0, width, height)), face}
	draw.Draw(c, c.Bounds(), image.White, image.Point{}, draw.Src)
	return c, nil
}

// rgba returns a colour that covers as much as alpha says, from 0 to 255.
func rgba(r, g, b, alpha uint8) color.NRGBA { return color.NRGBA{r, g, b, alpha} }

// fill fills a rectangle.
func (c *canvas) fill(x0, y0, x1, y1 int, with color.Color) {
	draw.Draw(c, image.Rect(x0, y0, max(x1, x0+1), max(y1, y0+1)), image.NewUniform(with), image.Point{}, draw.Over)
}

// line draws a line, two pixels wide.
func (c *canvas) line(x0, y0, x1, y1 int, with color.Color) {
	steps := max(abs(x1-x0), abs(y1-y0), 1)
	for i := range steps + 1 {
		x, y := x0+(x1-x0)*i/steps, y0+(y1-y0)*i/steps
		c.fill(x, y, x+2, y+2, with)
	}
}

// dashes draws a vertical line of dashes.
func (c *canvas) dashes(x, y0, y1 int, with color.Color) {
	for y := y0; y < y1; y += 8 {
		c.fill(x, y, x+1, min(y+4, y1), with)
	}
}

// text writes text whose baseline begins at a point.
func (c *canvas) text(x, y int, text string, with color.Color) {
	drawer := font.Drawer{Dst: c, Src: image.NewUniform(with), Face: c.face, Dot: fixed.P(x, y)}
	drawer.DrawString(text)
}

// width returns how wide text is.
func (c *canvas) width(text string) int { return font.MeasureString(c.face, text).Ceil() }

func (c *canvas) save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := png.Encode(file, c); err != nil {
		_ = file.Close() // the error that counts is the other
		return err
	}
	return file.Close()
}

func abs(n int) int { return max(n, -n) }
