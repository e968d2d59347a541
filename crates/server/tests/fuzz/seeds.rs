//! Inputs that the fuzzer begins with.

/// Returns inputs to begin with: typical conversations, and some that break off.
pub fn seeds() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let request = |flags: u16, command: u16, offset: u64, length: u32| {
        let fields =
            [&flags.to_be_bytes()[..], &command.to_be_bytes(), b"cookie!!", &offset.to_be_bytes()]
                .concat();
        [&0x2560_9513u32.to_be_bytes()[..], &fields, &length.to_be_bytes()].concat()
    };
    let go = option(7, b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03");
    let contexts = option(10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
    let hello = vec![0, 0, 0, 3];
    let structured = option(8, b"");
    let requests: Vec<Vec<u8>> = [
        (0, 0, 0, 512),
        (4, 0, 4096, 70_000),
        (0, 1, 8192, 300),
        (1, 3, 0, 0),
        (0, 4, 0, 4096),
        (0, 5, 0, 1 << 20),
        (18, 6, 0, 4096),
        (8, 7, 0, 1 << 20),
        (0, 9, 0, 0),
    ]
    .into_iter()
    .map(|(flags, command, offset, length)| {
        let payload = if command == 1 { vec![7; length as usize] } else { Vec::new() };
        [request(flags, command, offset, length), payload].concat()
    })
    .collect();
    let negotiated = [hello.clone(), structured.clone(), contexts.clone(), go.clone()].concat();
    let mut sent = vec![
        [hello.clone(), option(1, b"disk"), requests.concat(), request(0, 2, 0, 0)].concat(),
        [vec![0; 4], option(1, b""), requests.concat()].concat(),
        [
            hello.clone(),
            option(3, b""),
            option(9, &contexts[16..]),
            option(6, &go[16..]),
            option(2, b""),
        ]
        .concat(),
        [hello.clone(), option(5, b""), option(99, b"?"), option(6, b"\0\0\0\x04nope\0\0")]
            .concat(),
        [negotiated.clone(), requests.concat(), request(0, 2, 0, 0)].concat(),
        [negotiated.clone(), request(0, 1, 0, u32::MAX)].concat(),
        [
            negotiated.clone(),
            request(0, 1, 1 << 20, 5),
            vec![1; 5],
            request(0, 0, 0, 65536).repeat(40),
        ]
        .concat(),
    ];
    sent.extend(requests.iter().map(|request| [&negotiated[..], request].concat()));
    let nbd = (0..3).flat_map(|tls| {
        sent.iter().map(move |sent| [&[tls, 1, 2, 3, 4, 5, 6, 7, 8][..], sent].concat())
    });
    nbd.chain(super::nvme::seeds()).collect()
}
