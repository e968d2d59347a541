//! PDUs from the controller: each field is checked before it is used.

use super::command::Payload;
use super::error::{HostError, Status, broken};
use super::pdu::{
    CAPSULE_RESPONSE, COMMON_BYTES, CONTROLLER_DATA, CONTROLLER_TERMINATES, Common, DATA_DIGEST,
    DIGEST_BYTES, HEADER_BYTES, HEADER_DIGEST, IC_BYTES, IC_RESPONSE, LAST, READY_TO_TRANSFER,
    SUCCESS, TERMINATION_MAX_BYTES, checksum, u16_at, u32_at, u64_at,
};
use super::queue::{Agreed, Queue, Transfer};

/// Least MAXH2CDATA.
const LEAST_DATA_BYTES: u32 = 4096;

/// Header fields of data, either way, and of requests for it.
struct DataFields {
    id: u16,
    tag: u16,
    offset: u32,
    bytes: u32,
}

impl DataFields {
    fn parse(header: &[u8]) -> Self {
        Self {
            id: u16_at(header, 8),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12),
            bytes: u32_at(header, 16),
        }
    }
}

impl Queue {
    /// Takes received bytes in.
    ///
    /// # Errors
    /// When the controller breaks the protocol or ends the connection. The queue is of no use then.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(length) = self.whole(rest)? {
            let (one, more) = rest.split_at(length);
            self.take(one)?;
            rest = more;
        }
        let taken = input.len() - rest.len();
        self.input = input;
        self.input.drain(..taken);
        Ok(())
    }

    /// Checks the header at the beginning of `bytes` as far as it is there. Returns the PDU's
    /// length once it is there in full.
    fn whole(&mut self, bytes: &[u8]) -> Result<Option<usize>, HostError> {
        if bytes.len() < COMMON_BYTES {
            return Ok(None);
        }
        let common = Common::parse(bytes);
        let Some(agreed) = self.agreed else {
            if ![IC_RESPONSE, CONTROLLER_TERMINATES].contains(&common.kind) {
                return Err(broken(format!("PDU type {:#04x} comes before ICResp", common.kind)));
            }
            return Self::bounded(bytes, common);
        };
        let digest = if agreed.header_digest { HEADER_DIGEST } else { 0 };
        let header_bytes = HEADER_BYTES + digest_bytes(agreed.header_digest);
        let known = match common.kind {
            CONTROLLER_TERMINATES => return Self::bounded(bytes, common),
            CAPSULE_RESPONSE | READY_TO_TRANSFER => digest,
            CONTROLLER_DATA => {
                let data = if agreed.data_digest { DATA_DIGEST } else { 0 };
                digest | data | common.flags & (LAST | SUCCESS)
            }
            kind => return Err(broken(format!("PDU type {kind:#04x} is not a controller's"))),
        };
        if common.flags != known {
            let kind = common.kind;
            return Err(broken(format!("FLAGS {:#04x} of PDU type {kind:#04x}", common.flags)));
        }
        if common.header_bytes != HEADER_BYTES {
            return Err(broken(format!("HLEN {}, not {HEADER_BYTES}", common.header_bytes)));
        }
        if common.kind != CONTROLLER_DATA && common.bytes != header_bytes {
            return Err(broken(format!("PLEN {} of PDU type {}", common.bytes, common.kind)));
        }
        if bytes.len() < header_bytes {
            return Ok(None);
        }
        if agreed.header_digest {
            let (told, is) = (u32_at(bytes, HEADER_BYTES), checksum(&bytes[..HEADER_BYTES]));
            if told != is {
                return Err(broken(format!("header digest {told:#010x}, not {is:#010x}")));
            }
        }
        if common.kind == CONTROLLER_DATA {
            self.check_data(bytes, common, agreed)?;
        }
        Ok((bytes.len() >= common.bytes).then_some(common.bytes))
    }

    /// The checks of PDUs that carry no digests.
    fn bounded(bytes: &[u8], common: Common) -> Result<Option<usize>, HostError> {
        let lengths = match common.kind {
            IC_RESPONSE => IC_BYTES..=IC_BYTES,
            _ => HEADER_BYTES..=TERMINATION_MAX_BYTES,
        };
        if !lengths.contains(&common.bytes) {
            return Err(broken(format!("PLEN {} of PDU type {}", common.bytes, common.kind)));
        }
        if common.header_bytes != *lengths.start() {
            return Err(broken(format!("HLEN {}, not {}", common.header_bytes, lengths.start())));
        }
        Ok((bytes.len() >= common.bytes).then_some(common.bytes))
    }

    /// Checks that a data PDU is the next part of a command's data.
    fn check_data(
        &mut self,
        header: &[u8],
        common: Common,
        agreed: Agreed,
    ) -> Result<(), HostError> {
        let fields = DataFields::parse(header);
        let digests = (digest_bytes(agreed.header_digest), digest_bytes(agreed.data_digest));
        let alignment = 4 * (usize::from(self.options.alignment) + 1);
        let flow_control = self.options.flow_control;
        let command = self.find(fields.id).ok_or_else(|| {
            broken(format!("C2HData has CCCID {:#06x}, which is not in flight", fields.id))
        })?;
        let Payload::FromController(wanted) = command.payload else {
            let name = command.name;
            return Err(broken(format!("C2HData for {name}, which takes no data")));
        };
        let DataFields { offset, bytes, .. } = fields;
        let here = command.data.len() as u32;
        if offset != here {
            return Err(broken(format!("C2HData has DATAO {offset}, not {here}")));
        }
        if bytes == 0 || bytes > wanted - here {
            return Err(broken(format!("C2HData has DATAL {bytes} of {} to come", wanted - here)));
        }
        if common.data_offset < HEADER_BYTES + digests.0
            || !common.data_offset.is_multiple_of(alignment)
        {
            return Err(broken(format!("C2HData has PDO {}", common.data_offset)));
        }
        if common.bytes != common.data_offset + bytes as usize + digests.1 {
            return Err(broken(format!("C2HData has PLEN {}", common.bytes)));
        }
        let (last, success) = (common.flags & LAST != 0, common.flags & SUCCESS != 0);
        if command.ended || success && (!last || flow_control) || success && here + bytes < wanted {
            return Err(broken(format!("C2HData has FLAGS {:#04x}", common.flags)));
        }
        Ok(())
    }

    /// Takes a checked PDU in.
    fn take(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let common = Common::parse(bytes);
        match common.kind {
            IC_RESPONSE => self.take_agreement(bytes),
            CONTROLLER_TERMINATES => {
                Err(HostError::Terminated { status: u16_at(bytes, 8), info: u32_at(bytes, 10) })
            }
            CAPSULE_RESPONSE => self.take_response(bytes),
            READY_TO_TRANSFER => self.take_request(bytes),
            _ => self.take_data(bytes, common),
        }
    }

    fn take_agreement(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        if self.agreed.is_some() {
            return Err(broken("a second ICResp"));
        }
        let (version, alignment, digests) = (u16_at(bytes, 8), bytes[10], bytes[11]);
        let longest = u32_at(bytes, 12);
        let (header, data) = (digests & 1 != 0, digests & 2 != 0);
        if version != 0 {
            return Err(broken(format!("ICResp has PFV {version}")));
        }
        if alignment > 31 {
            return Err(broken(format!("ICResp has CPDA {alignment}")));
        }
        if (header, data) != (self.options.header_digest, self.options.data_digest) || digests > 3 {
            return Err(broken(format!("ICResp has DGST {digests}, which was not asked for")));
        }
        if longest < LEAST_DATA_BYTES || !longest.is_multiple_of(4) {
            return Err(broken(format!("ICResp has MAXH2CDATA {longest}")));
        }
        self.agreed = Some(Agreed {
            header_digest: header,
            data_digest: data,
            alignment: 4 * (usize::from(alignment) + 1),
            longest_data: longest,
        });
        Ok(())
    }

    fn take_response(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let entry = &bytes[COMMON_BYTES..];
        let (head, id) = (u16_at(entry, 8), u16_at(entry, 12));
        let status = Status(u16_at(entry, 14) >> 1);
        if self.options.flow_control && head >= self.options.entries {
            return Err(broken(format!("SQHD {head} of {} entries", self.options.entries)));
        }
        let command = self.find(id).ok_or_else(|| {
            broken(format!("CapsuleResp has CID {id:#06x}, which is not in flight"))
        })?;
        let (moved, whole) = match &command.payload {
            Payload::None => (0, 0),
            Payload::FromController(whole) => (command.data.len(), *whole as usize),
            Payload::ToController(data) => (command.asked as usize, data.len()),
        };
        let open = match &command.payload {
            Payload::FromController(_) => !command.ended,
            _ => command.transfers > 0,
        };
        if status.is_success() && (moved != whole || open) {
            let name = command.name;
            return Err(broken(format!("{name} succeeded with {moved} of {whole} bytes")));
        }
        self.finish(id, status, u64_at(entry, 0));
        Ok(())
    }

    fn take_request(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let most = self.options.transfers;
        let DataFields { id, tag, offset, bytes } = DataFields::parse(bytes);
        let command = self
            .find(id)
            .ok_or_else(|| broken(format!("R2T has CCCID {id:#06x}, which is not in flight")))?;
        let Payload::ToController(data) = &command.payload else {
            return Err(broken(format!("R2T for {}, which has no data", command.name)));
        };
        if offset != command.asked {
            return Err(broken(format!("R2T has R2TO {offset}, not {}", command.asked)));
        }
        let left = data.len() as u32 - offset;
        if bytes == 0 || bytes > left {
            return Err(broken(format!("R2T has R2TL {bytes} of {left} to come")));
        }
        if command.transfers >= most {
            return Err(broken(format!("{most} R2Ts are open, and another comes")));
        }
        command.asked += bytes;
        command.transfers += 1;
        self.transfers.push_back(Transfer { id, tag, offset, left: bytes });
        Ok(())
    }

    fn take_data(&mut self, bytes: &[u8], common: Common) -> Result<(), HostError> {
        let fields = DataFields::parse(bytes);
        let (from, length) = (common.data_offset, fields.bytes as usize);
        let data = &bytes[from..from + length];
        if common.flags & DATA_DIGEST != 0 {
            let (told, is) = (u32_at(bytes, from + length), checksum(data));
            if told != is {
                return Err(broken(format!("data digest {told:#010x}, not {is:#010x}")));
            }
        }
        let command = self.find(fields.id).expect("its header was checked");
        command.data.extend_from_slice(data);
        command.ended = common.flags & LAST != 0;
        if common.flags & SUCCESS != 0 {
            self.finish(fields.id, Status(0), 0);
        }
        Ok(())
    }
}

/// The bytes that a digest adds, if there is one.
fn digest_bytes(digest: bool) -> usize {
    if digest { DIGEST_BYTES } else { 0 }
}
