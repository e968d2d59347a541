//! Hits that a running server reads from the volume. Whether that pays is the machine's affair;
//! that it is tried is not.

use floe_block::WriteMode;
use floe_server::status::Status;
use floe_testkit::pattern;

use crate::rig::Setup;

const WRITTEN: usize = 1 << 20;

fn shed_bytes(status: &Status) -> u64 {
    status.shedding.as_ref().map_or(0, |shedding| shedding.shed_bytes)
}

#[test]
fn what_is_shed_reads_as_what_was_written_whoever_has_it() {
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::Back] {
        let mut setup = Setup::new(mode);
        setup.config.shed_most = Some(0.25);
        let rig = setup.start().unwrap();
        let mut clients = [rig.client_on(0), rig.client_on(1)];
        let (mut expected, mut found) = (pattern(1, WRITTEN), vec![0; WRITTEN]);
        clients[0].write(0, &expected, false).unwrap();
        clients[0].flush().unwrap(); // what is dirty is not shed
        clients[0].read(0, &mut found).unwrap();
        for round in 0.. {
            let status = rig.status();
            let shedding = status.shedding.as_ref().expect("it may shed");
            assert!(shedding.most == 0.25 && shedding.share_now <= 0.25, "{shedding:?}");
            if shed_bytes(&status) > 3 * WRITTEN as u64 {
                break;
            }
            let at = round * 20_000 % (WRITTEN - 50_000);
            expected[at..at + 50_000].copy_from_slice(&pattern(round as u64, 50_000));
            clients[round % 2]
                .write(at as u64, &expected[at..at + 50_000], round % 3 == 0)
                .unwrap();
            for client in &mut clients {
                for _ in 0..10 {
                    client.read(0, &mut found).unwrap();
                    assert!(found == expected, "{mode}, round {round}");
                }
            }
        }
        drop(clients);
        assert!(rig.end()[..WRITTEN] == expected, "{mode}");
    }
}

#[test]
fn a_server_that_may_not_shed_says_nothing_of_it() {
    let rig = Setup::new(WriteMode::Through).start().unwrap();
    assert_eq!(rig.status().shedding, None);
    rig.end();
}
