//! A TCP address in front of a server's Unix socket, whose connections end, hang or say nonsense as
//! a test wants.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Connections are closed as soon as they are made.
    refuses: AtomicBool,
    /// Nothing is passed on, in either direction.
    hangs: AtomicBool,
    ended: AtomicBool,
    clients: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub(crate) fn start(socket: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(State::default()));
        let (socket, shared) = (PathBuf::from(socket), Arc::clone(&state));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                let server = UnixStream::connect(&socket);
                let Ok(server) = server else { continue };
                if shared.refuses.load(Ordering::SeqCst) {
                    continue;
                }
                shared.clients.lock().unwrap().push(client.try_clone().unwrap());
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let state = Arc::clone(&shared);
                let end = server.try_clone().unwrap();
                std::thread::spawn(move || {
                    pass(&state, from, to);
                    let _ = end.shutdown(Shutdown::Both);
                });
                let state = Arc::clone(&shared);
                std::thread::spawn(move || {
                    pass(&state, server, client.try_clone().unwrap());
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, state }
    }

    pub(crate) fn text(&self) -> String {
        format!("nbd://{}/", self.address)
    }

    /// Ends all connections; new ones are refused until told otherwise.
    pub(crate) fn cut(&self, refuses: bool) {
        self.state.refuses.store(refuses, Ordering::SeqCst);
        for client in self.state.clients.lock().unwrap().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn hang(&self, hangs: bool) {
        self.state.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Says nonsense to all clients.
    pub(crate) fn babble(&self) {
        for client in self.state.clients.lock().unwrap().iter_mut() {
            client.write_all(&[0x55; 64]).unwrap();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.cut(true);
        let _ = TcpStream::connect(self.address); // it wakes up
    }
}

fn pass(state: &State, mut from: impl Read, mut to: impl Write) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes) else { return };
        while state.hangs.load(Ordering::SeqCst) && !state.ended.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
