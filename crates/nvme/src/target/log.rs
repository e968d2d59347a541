//! Log pages.

use super::identify::Page;
use super::namespace::Namespaces;
use super::subsystem::Controller;
use crate::wire::code::{admin, io, log};
use crate::wire::command::Command;
use crate::wire::status::Status;

/// Most bytes of a log page that one command reads.
const READ_MAX_BYTES: u64 = 64 << 10;
/// Most namespaces that the log of changes lists.
pub(super) const CHANGES_MAX: usize = 1024;

/// The part of a log page that a command asks for.
pub(super) struct Part {
    offset: u64,
    bytes: usize,
}

impl Part {
    /// Reads it from the command.
    pub(super) fn of(command: &Command) -> Result<Self, Status> {
        let double_words = u64::from(command.word(11) & 0xffff) << 16;
        let double_words = (double_words | u64::from(command.word(10) >> 16)) + 1;
        let (bytes, offset) = (4 * double_words, command.u64(48));
        if bytes > READ_MAX_BYTES || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.final_());
        }
        Ok(Self { offset, bytes: bytes as usize })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cuts it out of a page. Bytes behind the page's end are zero.
    pub(super) fn cut(&self, mut page: Vec<u8>) -> Result<Vec<u8>, Status> {
        if self.offset > page.len() as u64 {
            return Err(Status::INVALID_FIELD.final_());
        }
        page.drain(..self.offset as usize);
        page.resize(self.bytes, 0);
        Ok(page)
    }
}

/// Makes a log page, but for those of changes and of discovery.
pub(super) fn page(
    number: u8,
    command: &Command,
    controller: &Controller,
    namespaces: &Namespaces,
) -> Result<Vec<u8>, Status> {
    let unknown = Status::INVALID_LOG_PAGE.final_();
    match number {
        log::ERROR => Ok(Page::new(64).done()),
        _ if controller.discovery => Err(unknown),
        log::HEALTH => {
            let mut page = Page::new(512);
            page.put(1, &293_u16.to_le_bytes()).put(3, &[100, 10]); // kelvin; spare, its threshold
            Ok(page.done())
        }
        log::FIRMWARE => {
            let mut page = Page::new(512);
            page.put(0, &[1]); // the first slot is active
            Ok(page.done())
        }
        log::COMMANDS => Ok(commands()),
        log::ANA => Ok(access(command, namespaces)),
        _ => Err(unknown),
    }
}

/// The commands that are supported, each with its effects.
fn commands() -> Vec<u8> {
    const SUPPORTED: u32 = 1 << 0;
    const CHANGES_CONTENT: u32 = 1 << 1;
    let mut page = Page::new(4096);
    let mut set = |at: usize, codes: &[u8], effects: u32| {
        for code in codes {
            page.put(at + 4 * usize::from(*code), &effects.to_le_bytes());
        }
    };
    set(
        0,
        &[
            admin::GET_LOG_PAGE,
            admin::IDENTIFY,
            admin::ABORT,
            admin::SET_FEATURES,
            admin::GET_FEATURES,
            admin::ASYNC_EVENT,
            admin::KEEP_ALIVE,
        ],
        SUPPORTED,
    );
    set(1024, &[io::FLUSH, io::READ, io::COMPARE, io::VERIFY], SUPPORTED);
    set(1024, &[io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT], SUPPORTED | CHANGES_CONTENT);
    page.done()
}

/// The access to namespaces, each of which is in a group of its own.
fn access(command: &Command, namespaces: &Namespaces) -> Vec<u8> {
    const GROUP_BYTES: usize = 32;
    let groups_only = command.u8(41) & 1 != 0;
    let mut page = vec![0; 16];
    page[..8].copy_from_slice(&namespaces.access_changes().to_le_bytes());
    page[8..10].copy_from_slice(&(namespaces.iter().len() as u16).to_le_bytes());
    for namespace in namespaces.iter() {
        let mut group = [0; GROUP_BYTES];
        group[..4].copy_from_slice(&namespace.access_group().to_le_bytes());
        group[4] = u8::from(!groups_only); // namespaces
        group[16] = namespace.access.code();
        page.extend_from_slice(&group);
        if !groups_only {
            page.extend_from_slice(&namespace.id().to_le_bytes());
        }
    }
    page
}
