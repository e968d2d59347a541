//! moka in front of redb, as teams build it by hand: misses of moka ask redb on a blocking thread,
//! inserts go to both, and a thread of its own commits what has come, up to 1,000 at once. redb has
//! no limit: the thread removes the oldest objects that it has inserted.
//!
//! redb reads through the page cache: beside caches with O_DIRECT it has more memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use moka::sync::Cache;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use super::{Settings, Subject};

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("objects");
/// Writes in one transaction at most.
const WRITES: usize = 1000;
/// Bytes of redb's own cache.
const REDB_CACHE: usize = 16 << 20;

enum Write {
    Insert(u64, Bytes),
    Remove(u64),
    Sync(Sender<()>),
}

pub struct MokaRedb {
    memory: Cache<u64, Bytes>,
    database: Arc<Database>,
    writes: SyncSender<Write>,
    writer: JoinHandle<()>,
}

impl Subject for MokaRedb {
    async fn open(settings: &Settings) -> Result<Self, String> {
        let database = Database::builder()
            .set_cache_size(REDB_CACHE)
            .create(settings.folder.join("redb"))
            .map_err(|error| format!("redb: {error}"))?;
        let database = Arc::new(database);
        let memory = Cache::builder()
            .max_capacity(settings.memory as u64)
            .weigher(|_, value: &Bytes| value.len() as u32 + 8)
            .build();
        let (writes, inbox) = sync_channel(WRITES);
        let written = database.clone();
        let limit = settings.flash / 4 * 3; // redb's pages are not full
        let writer = std::thread::spawn(move || write(&written, &inbox, limit));
        Ok(Self { memory, database, writes, writer })
    }

    fn insert(&self, key: u64, value: Bytes) {
        self.memory.insert(key, value.clone());
        self.writes.send(Write::Insert(key, value)).expect("the writer runs");
    }

    async fn get(&self, key: u64) -> Option<Bytes> {
        if let Some(value) = self.memory.get(&key) {
            return Some(value);
        }
        let database = self.database.clone();
        let found = tokio::task::spawn_blocking(move || {
            let read = database.begin_read().expect("redb reads");
            let table = read.open_table(TABLE).ok()?;
            let value = table.get(key).expect("redb reads")?;
            Some(Bytes::copy_from_slice(value.value()))
        });
        let value = found.await.expect("redb reads")?;
        self.memory.insert(key, value.clone());
        Some(value)
    }

    fn remove(&self, key: u64) {
        self.memory.invalidate(&key);
        self.writes.send(Write::Remove(key)).expect("the writer runs");
    }

    async fn sync(&self) {
        let (done, wait) = channel();
        self.writes.send(Write::Sync(done)).expect("the writer runs");
        let committed = tokio::task::spawn_blocking(move || wait.recv());
        committed.await.expect("nobody panics").expect("the writer runs");
    }

    async fn close(self) {
        self.sync().await;
        drop(self.writes);
        self.writer.join().expect("the writer ends");
    }
}

fn write(database: &Database, inbox: &Receiver<Write>, limit: usize) {
    let (mut order, mut bytes) = (VecDeque::new(), 0);
    while let Ok(first) = inbox.recv() {
        let mut waiting = Vec::new();
        let mut transaction = database.begin_write().expect("redb writes");
        transaction.set_durability(Durability::None).expect("redb defers durability");
        {
            let mut table = transaction.open_table(TABLE).expect("redb writes");
            for write in std::iter::once(first).chain(inbox.try_iter().take(WRITES)) {
                match write {
                    Write::Insert(key, value) => {
                        if table.insert(key, &*value).expect("redb writes").is_none() {
                            order.push_back((key, value.len()));
                            bytes += value.len();
                        }
                    }
                    Write::Remove(key) => {
                        table.remove(key).expect("redb writes");
                    }
                    Write::Sync(done) => waiting.push(done),
                }
            }
            while bytes > limit {
                let (key, length) = order.pop_front().expect("bytes belong to keys");
                table.remove(key).expect("redb writes");
                bytes -= length;
            }
        }
        if !waiting.is_empty() {
            transaction.set_durability(Durability::Immediate).expect("redb is durable");
        }
        transaction.commit().expect("redb commits");
        for done in waiting {
            let _ = done.send(()); // the caller may have gone
        }
    }
}
