//! Writes charts as PNG pictures on a white background, with two pixels per unit of the chart in
//! each direction.
//!
//! Plotters draws without anti-aliasing, so the picture is drawn larger, and each square of pixels
//! is reduced to its mean.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use thiserror::Error;

use super::Report;
use super::chart::Chart;
use super::chart_writer::{ChartWriter, FINE, GROUND, Letters, WIDTH};
use super::lines::{draw, height};

/// Number of pixels per unit of the chart.
const PIXELS: u32 = 2;

/// Errors of writing a picture.
#[derive(Debug, Error)]
pub enum Error {
    /// The chart could not be drawn.
    #[error("cannot draw the chart {chart}: {reason}")]
    Draw {
        /// Name of the chart.
        chart: String,
        /// The error of the drawing library.
        reason: String,
    },
    /// The picture could not be written.
    #[error("cannot write the picture {}: {source}", path.display())]
    Write {
        /// Path of the picture.
        path: PathBuf,
        /// The error of the encoder or the file system.
        source: png::EncodingError,
    },
}

/// Writes each chart of a report to a file beside `stem`: `out` gives `out-miss-ratio.png`, and
/// `out-TRACE-miss-ratio.png` when there are several sections. Returns the paths written.
///
/// # Errors
/// The first chart that cannot be drawn or written; the files of those before it remain.
pub fn write_all(report: &Report, stem: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for (at, section) in report.sections.iter().enumerate() {
        for chart in &section.charts {
            let mut name = stem.as_os_str().to_owned();
            if report.sections.len() > 1 {
                name.push(format!("-{}", slug(&section.heading)));
            }
            let mut path = PathBuf::from(&name);
            path.as_mut_os_string().push(format!("-{}.png", slug(&chart.name)));
            if paths.contains(&path) {
                path = PathBuf::from(name);
                path.as_mut_os_string().push(format!("-{}-{}.png", at + 1, slug(&chart.name)));
            }
            write(chart, &section.heading, &path)?;
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Writes one chart to a file. Its heading has the chart's title and `about`, the name of a trace.
///
/// # Errors
/// The chart cannot be drawn, or the file cannot be written.
pub fn write(chart: &Chart, about: &str, path: &Path) -> Result<(), Error> {
    let bytes = encode(chart, about)?;
    let failed =
        |source: std::io::Error| Error::Write { path: path.to_owned(), source: source.into() };
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    file.write_all(&bytes).and_then(|()| file.flush()).map_err(failed)
}

/// Returns one chart as the bytes of a PNG file.
///
/// # Errors
/// The chart cannot be drawn.
pub fn encode(chart: &Chart, about: &str) -> Result<Vec<u8>, Error> {
    let failed = |reason: String| Error::Draw { chart: chart.name.clone(), reason };
    let drawable = chart.drawable();
    let heading =
        if about.is_empty() { chart.title.clone() } else { format!("{} – {about}", chart.title) };
    let size = (WIDTH as u32, (height(&drawable) + 34.0).ceil() as u32);
    let fine = (size.0 * FINE, size.1 * FINE);
    let mut pixels = vec![0; fine.0 as usize * fine.1 as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, fine).into_drawing_area();
        area.fill(&GROUND.rgb()).map_err(|e| failed(e.to_string()))?;
        draw(&ChartWriter::new(&area, Letters::Embedded), &drawable, &heading)
            .map_err(|e| failed(e.to_string()))?;
        area.present().map_err(|e| failed(e.to_string()))?;
    }
    let pixels = smaller(&pixels, fine.0 as usize, (FINE / PIXELS) as usize);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, size.0 * PIXELS, size.1 * PIXELS);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.map_err(|e| failed(e.to_string()))?;
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

/// Converts a name to one that is safe in file names.
fn slug(name: &str) -> String {
    let safe: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '.' || c == '_' { c } else { '-' })
        .collect();
    let safe = safe.trim_matches(['-', '.']).to_owned();
    if safe.is_empty() { "trace".to_owned() } else { safe.chars().take(80).collect() }
}
