//! Writes the charts of a report to files of their own, as PNG or SVG.

use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

use super::chart::Chart;
use super::{Report, png, svg_file};

/// The format of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    /// Pixels: 1,800 across.
    Png,
    /// Lines and text, which scale to any size.
    Svg,
}

impl PictureFormat {
    /// Returns the ending of a file's name.
    fn ending(self) -> &'static str {
        match self {
            PictureFormat::Png => "png",
            PictureFormat::Svg => "svg",
        }
    }
}

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
        /// The error of the file system.
        source: io::Error,
    },
}

/// Writes each chart of a report to a file beside `stem`: `out` gives `out-miss-ratio.png`, and
/// `out-TRACE-miss-ratio.png` when there are several sections. Returns the paths written.
///
/// # Errors
/// The first chart that cannot be drawn or written; the files of those before it remain.
pub fn write_pictures(
    report: &Report,
    stem: &Path,
    format: PictureFormat,
) -> Result<Vec<PathBuf>, Error> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let ending = format.ending();
    for (at, section) in report.sections.iter().enumerate() {
        for chart in &section.charts {
            let mut name = stem.as_os_str().to_owned();
            if report.sections.len() > 1 {
                name.push(format!("-{}", slug(&section.heading)));
            }
            let mut path = PathBuf::from(&name);
            path.as_mut_os_string().push(format!("-{}.{ending}", slug(&chart.name)));
            if paths.contains(&path) {
                path = PathBuf::from(name);
                path.as_mut_os_string().push(format!("-{}-{}.{ending}", at + 1, slug(&chart.name)));
            }
            write(chart, &section.heading, &path, format)?;
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Writes one chart to a file. Its heading has the chart's title and `about`, the name of a trace.
pub(super) fn write(
    chart: &Chart,
    about: &str,
    path: &Path,
    format: PictureFormat,
) -> Result<(), Error> {
    let failed = |reason| Error::Draw { chart: chart.name.clone(), reason };
    let bytes = match format {
        PictureFormat::Png => png::encode(chart, &heading(chart, about)).map_err(failed)?,
        PictureFormat::Svg => svg_file(chart, &heading(chart, about)).into_bytes(),
    };
    fs::write(path, bytes).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Returns the heading of a chart that stands alone.
fn heading(chart: &Chart, about: &str) -> String {
    if about.is_empty() { chart.title.clone() } else { format!("{} – {about}", chart.title) }
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
