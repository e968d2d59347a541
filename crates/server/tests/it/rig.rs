//! A server in a thread, devices that can be looked at, and a client that speaks bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use floe_block::{
    BlockCache, Config, Freezing, Memory, MemoryOptions, MemoryTier, MemoryWrite, WriteMode,
};
use floe_device::{Completion, Device, MemoryDevice, OpenError, Operation, Pool, Ring};
use floe_nbd::uri::{Address, Uri};
use floe_nvme::target::io::BlockSize;
use floe_server::admin::AdminAddress;
use floe_server::admin::client::{self as admin, Endpoint};
use floe_server::limits::Limits;
use floe_server::nbd_client::{Client, ClientError, Options};
use floe_server::persistent::Parts;
use floe_server::status::Status;
use floe_server::{
    AdminSetup, Bound, DeviceSource, NamedDevices, NvmeSetup, Reach, RequestLimit, ServeError,
    ServerSetup, Tier, TotalLimit, Volume, VolumeShare,
};
use floe_testkit::{PATIENCE, patiently};

/// Size of the volume.
pub(crate) const VOLUME: usize = 64 << 20;
const CACHE: u64 = 4 << 20;

/// What a tier in memory is given, if there is one.
const MEMORY: u64 = 8 << 20;

/// A tier in memory, of each kind and none.
pub(crate) const MEMORIES: [Option<MemoryWrite>; 3] =
    [None, Some(MemoryWrite::Through), Some(MemoryWrite::Back)];

/// Threads that serve.
pub(crate) const THREADS: usize = 2;

/// A server in a thread of its own.
pub(crate) struct Rig {
    /// Over a Unix socket and over TCP.
    pub(crate) uris: Vec<Uri>,
    /// Its addresses of NVMe over TCP.
    pub(crate) nvme: Vec<String>,
    /// Its admin socket.
    pub(crate) admin: Endpoint,
    /// Where its admin interface is on TCP.
    pub(crate) admin_tcp: String,
    /// Written to, it ends the server.
    pub(crate) signal: UnixStream,
    thread: JoinHandle<Result<(), ServeError>>,
    /// Below the backing device of the first volume.
    memory: MemoryDevice,
    _folder: tempfile::TempDir,
}

/// What servers warn of is shown with a test that fails: which device failed, and how.
fn show_warnings() {
    static ONCE: Once = Once::new();
    let warnings =
        tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer();
    ONCE.call_once(|| warnings.init());
}

/// What a server is made from: one volume, `floe`, and whatever a test puts beside it.
pub(crate) struct Setup {
    mode: WriteMode,
    /// Threads that serve.
    pub(crate) threads: usize,
    pub(crate) config: ServerSetup,
    evict: floe_block::Evict,
    cache: Arc<dyn DeviceSource>,
    /// Tiers below it, from the top: how each writes, its size, and its device.
    below: Vec<(WriteMode, u64, Arc<dyn DeviceSource>)>,
    /// Below the backing device of the first volume.
    memory: MemoryDevice,
    pub(crate) volumes: Vec<Volume>,
    folder: tempfile::TempDir,
}

impl Setup {
    pub(crate) fn new(mode: WriteMode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ServerSetup {
            listen: vec![
                format!("nbd+unix:///?socket={}", folder.path().join("socket").display())
                    .parse()
                    .unwrap(),
                "nbd://127.0.0.1:0".parse().unwrap(),
            ],
            admin: AdminSetup {
                listen: vec![
                    AdminAddress::Unix(folder.path().join("admin")),
                    AdminAddress::Tcp("127.0.0.1:0".into()),
                ],
                ..AdminSetup::default()
            },
            nvme: NvmeSetup::default(),
            insecure: false,
            tls: None,
            limits: Limits {
                // Clients of a busy machine are slow, and none of these tests is about that.
                handshake_time: PATIENCE,
                stall_time: PATIENCE,
                admin_time: PATIENCE / 2, // an idle admin client delays the end by so much
                ..Limits::default()
            },
            total_limit: TotalLimit::NONE,
            flush_interval: Duration::from_secs(3600),
            memory: None,
            shed_most: None,
            service: None,
            state: None,
            devices: Arc::new(NamedDevices),
            check_program: |_| Ok(()),
            turn: None,
            log_lines_dropped: || 0,
        };
        let cache = Wrapped::source(MemoryDevice::new(CACHE), |memory| Box::new(memory));
        let memory = MemoryDevice::new(VOLUME as u64);
        let volumes =
            vec![volume("floe", Wrapped::source(memory.clone(), |memory| Box::new(memory)))];
        Self {
            mode,
            threads: THREADS,
            config,
            evict: floe_block::Evict::default(),
            cache,
            below: Vec::new(),
            memory,
            volumes,
            folder,
        }
    }

    /// With another number of threads.
    pub(crate) fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// With another eviction policy, by its name.
    pub(crate) fn evict(self, name: &str) -> Self {
        Self { evict: name.parse().unwrap(), ..self }
    }

    /// `wrap` makes the first volume's backing device out of memory, once for each thread.
    pub(crate) fn backing(
        mut self,
        wrap: impl Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync + 'static,
    ) -> Self {
        self.volumes[0].backing = Wrapped::source(self.memory.clone(), wrap);
        self
    }

    /// `wrap` makes the cache device out of memory, once for each thread.
    pub(crate) fn cache(
        self,
        wrap: impl Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync + 'static,
    ) -> Self {
        Self { cache: Wrapped::source(MemoryDevice::new(CACHE), wrap), ..self }
    }

    /// With another tier below those there are; `wrap` makes its device out of memory, once for
    /// each thread.
    pub(crate) fn tier(
        mut self,
        mode: WriteMode,
        bytes: u64,
        wrap: impl Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync + 'static,
    ) -> Self {
        self.below.push((mode, bytes, Wrapped::source(MemoryDevice::new(bytes), wrap)));
        self
    }

    /// With a tier in memory, if any.
    pub(crate) fn memory(mut self, write: Option<MemoryWrite>) -> Self {
        self.config.memory = write.map(|write| {
            MemoryTier::new(MEMORY, MemoryOptions { write, ..MemoryOptions::default() }).unwrap()
        });
        self
    }

    /// The same, with so much of it frozen, anew every few milliseconds.
    pub(crate) fn frozen_memory(mut self, write: MemoryWrite, ratio: f64) -> Self {
        let often = Freezing::fixed(ratio).lifetime(Duration::from_millis(10));
        let options = MemoryOptions { write, freezing: Some(often), ..MemoryOptions::default() };
        self.config.memory = Some(MemoryTier::new(MEMORY, options).unwrap());
        self
    }

    /// With one volume more.
    pub(crate) fn volume(mut self, name: &str, backing: Arc<dyn DeviceSource>) -> Self {
        self.volumes.push(volume(name, backing));
        self
    }

    /// The server, or what kept it from beginning.
    pub(crate) fn start(self) -> Result<Rig, ServeError> {
        let Self { mode, threads, config, evict, cache, below, memory, volumes, folder } = self;
        show_warnings();
        let (signal, signals) = UnixStream::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let tier = |mode, cache_bytes, memory, source| {
                let sizes = "4KiB,16KiB,64KiB".parse().unwrap();
                let gate = floe_block::AdmissionConfig::default();
                let config = Config {
                    adapts_fetches: false,
                    sizes,
                    cache_bytes,
                    mode,
                    shards: Some(4),
                    gate,
                    evict: evict.clone(),
                    memory,
                    kept: false,
                };
                let cache = Parts::volatile(BlockCache::parts(config, threads).unwrap());
                Tier::new(String::new(), cache, source, cache_bytes)
            };
            let memory = config.memory.as_ref().map_or(Memory::None, MemoryTier::config);
            let mut tiers = vec![tier(mode, CACHE, memory, cache)];
            tiers.extend(
                below
                    .into_iter()
                    .map(|(mode, bytes, source)| tier(mode, bytes, Memory::None, source)),
            );
            let begun = Bound::bind(config).and_then(|it| it.serve(tiers, volumes, signals.into()));
            let server = match begun {
                Ok(server) => server,
                Err(error) => {
                    tell.send(Err(error)).unwrap();
                    return Ok(());
                }
            };
            let admin: Vec<_> = server.admin_addresses().cloned().collect();
            let nvme = server.nvme_addresses().map(ToString::to_string).collect();
            tell.send(Ok((server.uris().collect(), nvme, admin))).unwrap();
            server.run().map(drop)
        });
        let (uris, nvme, mut admin): (_, _, Vec<AdminAddress>) =
            told.recv_timeout(PATIENCE).expect("it begins, or says why not")?;
        let admin_tcp = admin.pop().expect("TCP is the last").to_string();
        let admin = admin.pop().expect("the socket is the first").into();
        Ok(Rig { uris, nvme, admin, admin_tcp, signal, thread, memory, _folder: folder })
    }
}

/// A writable volume.
fn volume(name: &str, backing: Arc<dyn DeviceSource>) -> Volume {
    let (name, description) = (name.into(), String::new());
    let (block_size, reach) = (BlockSize::default(), Reach::Clients);
    let (limit, share) = (RequestLimit::default(), VolumeShare::default());
    Volume { name, description, backing, read_only: false, block_size, limit, share, reach }
}

impl Rig {
    pub(crate) fn start(mode: WriteMode) -> Self {
        Self::on(mode, |memory| Box::new(memory))
    }

    /// `wrap` makes the backing device out of the memory that [`Rig::join`] gives back, once for
    /// each thread.
    pub(crate) fn on(
        mode: WriteMode,
        wrap: impl Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync + 'static,
    ) -> Self {
        Self::tuned(mode, wrap, |_| {})
    }

    /// As [`Rig::on`], with settings of the test's own.
    pub(crate) fn tuned(
        mode: WriteMode,
        wrap: impl Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync + 'static,
        tune: impl FnOnce(&mut ServerSetup),
    ) -> Self {
        let mut setup = Setup::new(mode).backing(wrap);
        tune(&mut setup.config);
        setup.start().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        self.client_on(0)
    }

    pub(crate) fn client_on(&self, which: usize) -> Client {
        let options = Options { timeout: Some(PATIENCE), ..Options::default() };
        Client::connect_with(&self.uris[which % 2], &options).unwrap()
    }

    /// A client of a volume, which may be gone.
    pub(crate) fn client_of(&self, name: &str) -> Result<Client, ClientError> {
        let options = Options { timeout: Some(PATIENCE), ..Options::default() };
        Client::connect_with(&Uri { export: name.into(), ..self.uris[1].clone() }, &options)
    }

    /// A TCP connection on which nothing has been said.
    pub(crate) fn stranger(&self) -> TcpStream {
        let Address::Tcp { host, port } = &self.uris[1].address else { panic!("{:?}", self.uris) };
        let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A TCP connection after a handshake, with simple replies.
    pub(crate) fn raw(&self) -> TcpStream {
        let mut stream = self.stranger();
        shake_hands(&mut stream);
        stream
    }

    /// A connection to the admin socket on which nothing has been said.
    pub(crate) fn admin_stranger(&self) -> UnixStream {
        let AdminAddress::Unix(path) = &self.admin.address else { panic!("{:?}", self.admin) };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The admin interface's answer to this over TCP.
    pub(crate) fn over_tcp(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin_tcp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        String::from_utf8(drained(&mut stream)).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        admin::status(&self.admin).unwrap()
    }

    /// Waits until the status is as wanted.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&Status) -> bool) -> Status {
        patiently(|| Some(self.status()).filter(&wanted))
    }

    pub(crate) fn tell_to_end(&self) {
        (&self.signal).write_all(&[1]).unwrap();
    }

    /// The end of the server, and what is on the backing device then.
    pub(crate) fn join(self) -> (Result<(), ServeError>, Vec<u8>) {
        patiently(|| self.thread.is_finished().then_some(()));
        let result = self.thread.join().unwrap();
        let mut bytes = vec![0; VOLUME];
        self.memory.read_at(0, &mut bytes);
        (result, bytes)
    }

    /// Ends the server well; what is on the backing device then.
    pub(crate) fn end(self) -> Vec<u8> {
        self.tell_to_end();
        let (result, bytes) = self.join();
        result.unwrap();
        bytes
    }
}

/// A memory device with something in front of it.
pub(crate) struct Wrapped<W> {
    memory: MemoryDevice,
    /// Its size in bytes, as it has grown.
    size: AtomicU64,
    wrap: W,
}

impl<W: Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync + 'static> Wrapped<W> {
    pub(crate) fn source(memory: MemoryDevice, wrap: W) -> Arc<dyn DeviceSource> {
        let size = AtomicU64::new(memory.size_bytes());
        Arc::new(Self { memory, size, wrap })
    }
}

impl<W> std::fmt::Debug for Wrapped<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wrapped")
    }
}

impl<W: Fn(MemoryDevice) -> Box<dyn Device> + Send + Sync> DeviceSource for Wrapped<W> {
    fn size_bytes(&self) -> u64 {
        self.size.load(SeqCst)
    }

    fn refresh(&self) -> std::io::Result<u64> {
        Ok(self.size_bytes())
    }

    fn grow(&self, bytes: u64) -> Result<(), OpenError> {
        let grown = self.memory.grow(bytes);
        grown.map_err(|source| OpenError::Memory { size: bytes, source })?;
        self.size.fetch_max(bytes, SeqCst);
        Ok(())
    }

    fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok((self.wrap)(self.memory.clone()))
    }
}

/// A client's part of the handshake.
pub(crate) fn shake_hands(stream: &mut (impl Read + Write)) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    let mut hello = vec![0, 0, 0, 3];
    hello.extend_from_slice(b"IHAVEOPT\0\0\0\x01\0\0\0\x04floe");
    stream.write_all(&hello).unwrap();
    let mut export = [0; 10];
    stream.read_exact(&mut export).unwrap();
}

/// A request's header.
pub(crate) fn header(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// Reads a simple reply; its error code and cookie.
pub(crate) fn simple_reply(stream: &mut impl Read) -> (u32, u64) {
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
    (
        u32::from_be_bytes(reply[4..8].try_into().unwrap()),
        u64::from_be_bytes(reply[8..].try_into().unwrap()),
    )
}

/// Reads until the other side hangs up, by whatever means.
pub(crate) fn drained(stream: &mut impl Read) -> Vec<u8> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return bytes,
            Ok(more) => bytes.extend_from_slice(&piece[..more]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A gate in front of a device: while it is shut, what is submitted waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    shut: Arc<AtomicBool>,
    /// Where the operations are that wait.
    waiting: Arc<Mutex<Vec<u64>>>,
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.shut.store(true, SeqCst);
    }

    pub(crate) fn open(&self) {
        self.shut.store(false, SeqCst);
    }

    /// Waits until so many operations stand before the gate.
    pub(crate) fn wait_for(&self, operations: usize) {
        patiently(|| (self.waiting.lock().unwrap().len() >= operations).then_some(()));
    }

    /// Waits until an operation within this range of the device stands before the gate.
    pub(crate) fn wait_for_one_in(&self, range: Range<u64>) {
        let stands = || self.waiting.lock().unwrap().iter().any(|at| range.contains(at));
        patiently(|| stands().then_some(()));
    }

    pub(crate) fn before(&self, device: impl Device + 'static) -> Box<dyn Device> {
        Box::new(Gated { device, gate: self.clone(), held: Vec::new() })
    }
}

struct Gated<D> {
    device: D,
    gate: Gate,
    held: Vec<Operation>,
}

impl<D: Device> Device for Gated<D> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        self.gate.waiting.lock().unwrap().push(operation.offset);
        self.held.push(operation);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !self.gate.shut.load(SeqCst) {
            for operation in self.held.drain(..) {
                let mut waiting = self.gate.waiting.lock().unwrap();
                let found = waiting.iter().position(|at| *at == operation.offset);
                waiting.swap_remove(found.expect("it waits"));
                drop(waiting);
                self.device.submit(operation);
            }
        }
        self.device.poll(done);
    }

    fn next_due(&self) -> Option<Instant> {
        let soon = (!self.held.is_empty()).then(|| Instant::now() + Duration::from_millis(1));
        [soon, self.device.next_due()].into_iter().flatten().min()
    }
}
