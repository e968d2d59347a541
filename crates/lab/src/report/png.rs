//! Draws charts as PNG pictures on a white background, with two pixels per unit of the chart in
//! each direction.
//!
//! Plotters draws without anti-aliasing, so the picture is drawn larger, and each square of pixels
//! is reduced to its mean.

use plotters::prelude::*;

use super::chart::Chart;
use super::chart_writer::{ChartWriter, FINE, Form, GROUND, Letters};
use super::lines::{HEADING, draw, height};

/// Number of pixels per unit of the chart.
const PIXELS: u32 = 2;

/// Returns one chart under a heading as the bytes of a PNG file.
///
/// # Errors
/// The error of the drawing library or the encoder, as text.
pub(super) fn encode(chart: &Chart, heading: &str) -> Result<Vec<u8>, String> {
    let drawable = chart.drawable();
    let form = Form::Wide;
    let size = (form.width() as u32, (height(&drawable, form) + HEADING).ceil() as u32);
    let fine = (size.0 * FINE, size.1 * FINE);
    let mut pixels = vec![0; fine.0 as usize * fine.1 as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, fine).into_drawing_area();
        area.fill(&GROUND.rgb()).map_err(|error| error.to_string())?;
        draw(&ChartWriter::new(&area, Letters::Embedded, form), &drawable, heading)
            .map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    let pixels = smaller(&pixels, fine.0 as usize, (FINE / PIXELS) as usize);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, size.0 * PIXELS, size.1 * PIXELS);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Reduces a picture by replacing each square of `by` × `by` pixels by its mean.
fn smaller(pixels: &[u8], width: usize, by: usize) -> Vec<u8> {
    let row = width * 3;
    let mut out = Vec::with_capacity(pixels.len() / (by * by));
    for rows in pixels.chunks_exact(row * by) {
        for x in (0..width).step_by(by) {
            for color in 0..3 {
                let square = (0..by * by)
                    .map(|at| usize::from(rows[at / by * row + (x + at % by) * 3 + color]));
                out.push((square.sum::<usize>() / (by * by)) as u8);
            }
        }
    }
    out
}
