//! Writers for every format, kept apart from the readers they check.
#![allow(dead_code)] // each test file uses some of it

use std::io::Read;

use floe_trace::{Error, Format, Kind, Op, OpenOptions, Request, Trace};
use proptest::prelude::*;

/// All formats whose requests [`encode`] can write.
pub(crate) const FORMATS: [&str; 29] = [
    "adaptsize",
    "address",
    "alibaba",
    "arc",
    "be32",
    "be64",
    "blkparse",
    "blkparse-issued",
    "cachelib",
    "csv",
    "disksim",
    "fio",
    "fiu",
    "ibm",
    "le32",
    "le64",
    "msr",
    "oracleGeneral",
    "plain",
    "prompts",
    "spc",
    "srt",
    "ssdsim",
    "systor",
    "tencent",
    "twitter",
    "vscsi",
    "wikibench",
    "wikipedia",
];

/// Those with records of a fixed size, and the size.
pub(crate) const BINARY: [(&str, usize); 7] = [
    ("be32", 4),
    ("be64", 8),
    ("le32", 4),
    ("le64", 8),
    ("oracleGeneral", 24),
    ("srt", 56),
    ("vscsi", 32),
];

/// What comes before the first record.
pub(crate) fn header(format: &str) -> &'static [u8] {
    match format {
        "srt" => b"$$TR_IOREC-1.3\nsome text;\n\x0c",
        "systor" => b"Timestamp,Response,IOType,LUN,Offset,Size\n",
        "cachelib" => b"op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n",
        "csv" => b"Time,Obj_ID,Size,Type\n",
        "fio" => b"fio version 3 iolog\n",
        _ => b"",
    }
}

/// One record. Times are whole seconds, offsets and lengths whole sectors.
pub(crate) fn encode(format: &str, request: &Request, out: &mut Vec<u8>) {
    let Request { time_ns, key, bytes, volume, op } = *request;
    let (s, sector, sectors) = (time_ns / 1_000_000_000, key / 512, bytes / 512);
    let read = op == Op::Read;
    let letter = if read { 'R' } else { 'W' };
    let text = match format {
        "adaptsize" => format!("{s} {key} {bytes}\n"),
        "address" => format!("{} 0x{key:x} 1\n", if read { 'l' } else { 's' }),
        "alibaba" => format!("{volume},{letter},{key},{bytes},{}\n", s * 1_000_000),
        "arc" => format!("{key} 1 0 0\n"),
        "cachelib" => {
            let name = if read { "GET" } else { "SET" };
            format!("{s},{key},0,{name},1,{bytes},1,0,7,8\n")
        }
        "blkparse" | "blkparse-issued" => {
            let action = if format == "blkparse" { 'Q' } else { 'D' };
            format!(
                "  8,{volume}    1       42 {s:5}.000000000   697  {action}  {letter}S {sector} + \
                 {sectors} [a b]\n"
            )
        }
        "csv" => format!("{s}.0,{key},{bytes},{letter}\n"),
        "fio" => {
            let name = if read { "read" } else { "write" };
            format!("{} /dev/sd{volume} {name} {key} {bytes}\n", s * 1_000_000)
        }
        "ibm" => {
            let name = if read { "GET" } else { "PUT" };
            format!("{} REST.{name}.OBJECT {key:016x} {bytes}\n", s * 1000)
        }
        "fiu" => {
            let digest = "56f11b711d91a065a2b6458eca924523";
            format!("{time_ns} 20782 gzip {sector} {sectors} {letter} 8 {volume} {digest}\n")
        }
        "disksim" => format!("{}.000 {volume} {sector} {sectors} {}\n", s * 1000, u8::from(read)),
        "msr" => {
            let name = if read { "Read" } else { "Write" };
            format!(
                "{},hm,{volume},{name},{key},{bytes},77\n",
                128_166_372_000_000_000 + s * 10_000_000
            )
        }
        "plain" => format!("{key}\n"),
        "prompts" => format!("{{\"timestamp\": {}, \"hash_ids\": [{key}]}}\n", s * 1000),
        "spc" => format!("{volume},{sector},{bytes},{letter},{s}.000000\n"),
        "ssdsim" => format!("{time_ns} {volume} {sector} {sectors} {}\n", u8::from(read)),
        "systor" => format!("{s}.000000000,0.25,{letter},{volume},{key},{bytes}\n"),
        "tencent" => format!("{s},{sector},{sectors},{},{volume}\n", u8::from(!read)),
        "twitter" => {
            let name = if read { "get" } else { "set" };
            format!("{s},{key},0,{bytes},3,{name},0\n")
        }
        "wikibench" => format!("{s} {s}.250 {key} {}\n", if read { "-" } else { "save" }),
        "wikipedia" => format!("{s}\t{key}\tjpeg\t{bytes}\t1.85E-4\n"),
        _ => String::new(),
    };
    out.extend(text.as_bytes());
    match format {
        "be32" => out.extend((key as u32).to_be_bytes()),
        "be64" => out.extend(key.to_be_bytes()),
        "le32" => out.extend((key as u32).to_le_bytes()),
        "le64" => out.extend(key.to_le_bytes()),
        "oracleGeneral" => {
            out.extend((s as u32).to_le_bytes());
            out.extend(key.to_le_bytes());
            out.extend((bytes as u32).to_le_bytes());
            out.extend((-1i64).to_le_bytes());
        }
        "srt" => {
            let flags = if read { 27 } else { 26 };
            let (bytes, sector) = (bytes as u32, sector as u32);
            for word in
                [56, 1, s as u32, 0, 3, 4, bytes, sector, volume << 8 | 7, 4, 1, flags, 5, 6]
            {
                out.extend(word.to_be_bytes());
            }
        }
        "vscsi" => {
            let command = if read { 0x28u16 } else { 0x2a };
            out.extend(9u32.to_le_bytes());
            out.extend((bytes as u32).to_le_bytes());
            out.extend(1u32.to_le_bytes());
            out.extend(command.to_le_bytes());
            out.extend(0x100u16.to_le_bytes());
            out.extend(sector.to_le_bytes());
            out.extend((s * 1_000_000).to_le_bytes());
        }
        _ => {}
    }
}

/// A whole trace.
pub(crate) fn write(format: &str, requests: &[Request]) -> Vec<u8> {
    let mut out = header(format).to_vec();
    for request in requests {
        encode(format, request, &mut out);
    }
    out
}

/// What a reader should make of it: times from the first record on, and no more than the format can
/// tell.
pub(crate) fn expected(format: &str, requests: &[Request]) -> Vec<Request> {
    let first_ns = requests.first().map_or(0, |request| request.time_ns);
    let kind = self::format(format).kind();
    let disks = in_order_of_appearance(requests);
    let told = |(number, &request): (u32, &Request)| match kind {
        // Each is a prompt of one block.
        Kind::Key if format == "prompts" => Request {
            time_ns: request.time_ns.saturating_sub(first_ns),
            bytes: 1,
            volume: number,
            op: Op::Read,
            ..request
        },
        Kind::Key if format == "address" => Request { time_ns: 0, bytes: 1, volume: 0, ..request },
        Kind::Key if format == "wikibench" => Request {
            time_ns: request.time_ns.saturating_sub(first_ns),
            bytes: 1,
            volume: 0,
            ..request
        },
        Kind::Key => Request { time_ns: 0, bytes: 1, volume: 0, op: Op::Read, ..request },
        _ => Request {
            time_ns: request.time_ns.saturating_sub(first_ns),
            volume: match (kind, format) {
                (Kind::Object, _) | (_, "vscsi") => 0,
                // Hosts' disks are numbered as they appear.
                (_, "msr" | "blkparse" | "blkparse-issued" | "fio" | "fiu") => {
                    disks.iter().position(|&disk| disk == request.volume).unwrap() as u32
                }
                _ => request.volume,
            },
            op: match format {
                "adaptsize" | "oracleGeneral" | "wikipedia" => Op::Read,
                _ => request.op,
            },
            ..request
        },
    };
    (0..).zip(requests).map(told).collect()
}

fn in_order_of_appearance(requests: &[Request]) -> Vec<u32> {
    let mut seen = Vec::new();
    for request in requests {
        if !seen.contains(&request.volume) {
            seen.push(request.volume);
        }
    }
    seen
}

/// Any request that every format can write.
pub(crate) fn any_request() -> impl Strategy<Value = Request> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write)];
    (1..4_000_000u64, 0..8_000_000u64, 1..5000u64, 0..5u32, op).prop_map(
        |(s, sector, sectors, volume, op)| Request {
            time_ns: s * 1_000_000_000,
            key: sector * 512,
            bytes: sectors * 512,
            volume,
            op,
        },
    )
}

/// `count` requests in order of time.
pub(crate) fn requests(count: u64) -> Vec<Request> {
    let request = |i: u64| Request {
        time_ns: (1000 + i) * 1_000_000_000,
        key: (i * i % 7919) * 4096,
        bytes: (1 + i % 9) * 512,
        volume: (i % 3) as u32,
        op: if i.is_multiple_of(4) { Op::Write } else { Op::Read },
    };
    (0..count).map(request).collect()
}

/// A format by its name.
pub(crate) fn format(name: &str) -> Format {
    name.parse().expect("a format's name")
}

/// Options that give the format.
pub(crate) fn given(name: &str) -> OpenOptions {
    OpenOptions { format: Some(format(name)), ..OpenOptions::default() }
}

/// Options that give the format and skip bad records.
pub(crate) fn lenient(name: &str) -> OpenOptions {
    OpenOptions { skip_bad: true, ..given(name) }
}

/// A trace called `t` of these bytes.
pub(crate) fn open(bytes: &[u8], options: &OpenOptions) -> Result<Trace, Error> {
    Trace::from_reader("t", std::io::Cursor::new(bytes.to_vec()), options)
}

/// All requests of it.
pub(crate) fn read(bytes: &[u8], options: &OpenOptions) -> Result<Vec<Request>, Error> {
    open(bytes, options)?.collect()
}

/// What is wrong with it, as a user sees it.
pub(crate) fn error(bytes: &[u8], options: &OpenOptions) -> String {
    read(bytes, options).expect_err("a bad trace").to_string()
}

/// Gives one byte at a time.
pub(crate) struct Trickle(pub(crate) std::io::Cursor<Vec<u8>>);

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let one = buffer.len().min(1);
        self.0.read(&mut buffer[..one])
    }
}
