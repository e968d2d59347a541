//! The threads that serve: started together, and waited for at the end.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use super::config::ServeError;
use super::front::Colleague;
use super::letter::{Instruction, News};
use super::mailbox::Mailbox;
use super::worker::{Beginning, Worker};

/// The running workers. Dropping it ends them, whatever they do, and waits until they have.
pub(super) struct Team {
    threads: Vec<JoinHandle<()>>,
    instructions: Vec<Arc<Mailbox<Instruction>>>,
}

impl Team {
    /// Starts a thread for each, and waits until all have opened their devices.
    ///
    /// # Errors
    /// When one of them cannot begin; the others are ended.
    pub(super) fn begin(
        beginnings: Vec<Beginning>,
        workers: &[Colleague],
    ) -> Result<Self, ServeError> {
        let instructions = workers.iter().map(|worker| Arc::clone(&worker.instructions)).collect();
        let mut team = Self { threads: Vec::new(), instructions };
        let (ready, begun) = mpsc::channel();
        let workers = beginnings.len();
        for beginning in beginnings {
            let ready = ready.clone();
            let builder = Builder::new().name(format!("floe-{}", beginning.number));
            let thread =
                builder.spawn(move || serve(beginning, &ready)).map_err(ServeError::Thread)?;
            team.threads.push(thread);
        }
        drop(ready);
        for _ in 0..workers {
            begun.recv().expect("a thread says whether it has begun")?;
        }
        Ok(team)
    }
}

fn serve(beginning: Beginning, ready: &mpsc::Sender<Result<(), ServeError>>) {
    let news = Arc::clone(&beginning.news);
    let mut watch = Watch { number: beginning.number, news, ready, over: false };
    // Nobody listens any more when another worker could not begin.
    let ended = match Worker::begin(beginning) {
        Ok(worker) => {
            let _ = ready.send(Ok(()));
            worker.run()
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            Ok(())
        }
    };
    watch.over = true;
    if let Err(error) = ended {
        watch.news.post(News::Died(error));
    }
}

/// Tells the front desk, or whoever waits for the threads to begin, when a worker's thread unwinds.
struct Watch<'a> {
    number: usize,
    news: Arc<Mailbox<News>>,
    ready: &'a mpsc::Sender<Result<(), ServeError>>,
    over: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.over {
            // nobody listens any more once all have begun
            let _ = self.ready.send(Err(ServeError::Panicked(self.number)));
            self.news.post(News::Died(ServeError::Panicked(self.number)));
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.instructions.iter().for_each(|instructions| instructions.post(Instruction::Stop));
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic has been told
        }
    }
}
