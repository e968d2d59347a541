//! The statistics page of a cache's file: figures of the running session, or of the last one.
//!
//! A running cache writes the page through the page cache, so that another process sees it at once
//! and the end of this one does not undo it. The page is behind the last segment. A file that ends
//! there has none. docs/hybrid-format.md has the layout.

use std::io;

use crate::flash::Flash;
use crate::format::{Geometry, PAGE_BYTES, Superblock, crc, seconds_now, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"FloeSta\n";
const HEADER_BYTES: usize = 48;
const CLOSED: u32 = 1;
/// Attempts to read the page, which a running cache may be writing.
const ATTEMPTS: usize = 5;

/// Figures of a cache's running session, or of its last one, read from its file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedStats {
    /// Number of the session that wrote the figures.
    pub session: u64,
    /// Number of times the cache was opened. Larger than `session` if the latest session has
    /// written no figures.
    pub latest_session: u64,
    /// Second since 1970 at which the figures were written.
    pub written_seconds: u64,
    /// True if the session was closed after the figures were written.
    pub closed: bool,
    /// True if a process has the cache open.
    pub in_use: bool,
    /// Names and values, in the order of [`figures`](crate::figures()) of the version that wrote
    /// them.
    pub figures: Vec<(String, u64)>,
}

impl SavedStats {
    /// Returns the value of a figure.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.figures.iter().find(|(of, _)| of == name).map(|(_, value)| *value)
    }
}

/// The statistics page of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StatsPage {
    cache: u64,
    session: u64,
    written: u64,
    closed: bool,
    figures: Vec<(String, u64)>,
}

impl StatsPage {
    /// Encodes the page. Figures without room are left out.
    fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[8..16].copy_from_slice(MAGIC);
        page[16..24].copy_from_slice(&self.cache.to_le_bytes());
        page[24..32].copy_from_slice(&self.session.to_le_bytes());
        page[32..40].copy_from_slice(&self.written.to_le_bytes());
        let flags = if self.closed { CLOSED } else { 0 };
        page[40..44].copy_from_slice(&flags.to_le_bytes());
        let mut end = HEADER_BYTES;
        for (name, value) in &self.figures {
            let line = format!("{name} {value}\n");
            let Some(room) = page.get_mut(end..end + line.len()) else { break };
            room.copy_from_slice(line.as_bytes());
            end += line.len();
        }
        page[4..8].copy_from_slice(&((end - HEADER_BYTES) as u32).to_le_bytes());
        let sum = crc(&page[4..]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
        page
    }

    /// Reads the page; `None` if these bytes are none.
    fn decode(page: &[u8]) -> Option<Self> {
        if page[8..16] != MAGIC[..] || u32_at(page, 0) != crc(&page[4..PAGE_BYTES]) {
            return None;
        }
        let text = page[HEADER_BYTES..].get(..u32_at(page, 4) as usize)?;
        let line = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Some(Self {
            cache: u64_at(page, 16),
            session: u64_at(page, 24),
            written: u64_at(page, 32),
            closed: u32_at(page, 40) & CLOSED != 0,
            figures: std::str::from_utf8(text).ok()?.lines().filter_map(line).collect(),
        })
    }
}

/// Returns the offset of the statistics page; `None` if the file has no room for it.
fn page_offset(flash: &dyn Flash, geometry: Geometry) -> Option<u64> {
    let offset = geometry.total_bytes();
    (offset + PAGE_BYTES as u64 <= flash.size_bytes()).then_some(offset)
}

/// Writes the statistics page of a session.
pub(crate) fn write(
    flash: &dyn Flash,
    geometry: Geometry,
    (cache, session): (u64, u64),
    figures: Vec<(String, u64)>,
    closed: bool,
) -> io::Result<()> {
    let Some(offset) = page_offset(flash, geometry) else { return Ok(()) };
    let page = StatsPage { cache, session, written: seconds_now(), closed, figures };
    flash.write_cached(&page.encode(), offset)
}

/// Reads the figures of a cache with this superblock, if its file has them.
pub(crate) fn read(
    flash: &dyn Flash,
    block: &Superblock,
    in_use: bool,
) -> io::Result<Option<SavedStats>> {
    let Some(offset) = page_offset(flash, block.geometry) else { return Ok(None) };
    let mut bytes = flash.buffers().take(PAGE_BYTES);
    let mut page = None;
    for _ in 0..ATTEMPTS {
        flash.read(&mut bytes, offset)?;
        page = StatsPage::decode(&bytes).filter(|page| page.cache == block.id);
        if page.is_some() {
            break;
        }
    }
    Ok(page.map(|StatsPage { session, written, closed, figures, .. }| SavedStats {
        session,
        latest_session: block.session,
        written_seconds: written,
        // After a loss of power the superblock may know more than the page.
        closed: closed || block.clean && session == block.session,
        in_use,
        figures,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(figures: usize) -> StatsPage {
        let figures = (0..figures).map(|at| (format!("figure_{at}"), u64::MAX - at as u64));
        StatsPage { cache: 1, session: 2, written: 3, closed: true, figures: figures.collect() }
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        for figures in [0, 1, 100] {
            assert_eq!(StatsPage::decode(&page(figures).encode()), Some(page(figures)));
        }
        let cut = StatsPage::decode(&page(1000).encode()).unwrap();
        assert!(cut.figures.len() > 100 && page(1000).figures.starts_with(&cut.figures));
    }

    #[test]
    fn a_page_with_a_wrong_bit_is_none() {
        let page = page(5).encode();
        for bit in 0..page.len() * 8 {
            let mut page = page;
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(StatsPage::decode(&page), None, "bit {bit}");
        }
    }

    #[test]
    fn all_figures_of_a_cache_have_room() {
        let figures = crate::figures().iter().map(|it| (it.name.to_owned(), u64::MAX));
        let figures: Vec<_> = figures.collect();
        let page = StatsPage { figures: figures.clone(), ..page(0) };
        assert_eq!(StatsPage::decode(&page.encode()).unwrap().figures, figures);
    }
}
