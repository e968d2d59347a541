//! Tables of TPC-H as files of Parquet in a bucket, and queries of them.

use std::error::Error;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatchReader;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tpchgen::generators::{LineItemGenerator, PartGenerator};
use tpchgen_arrow::{LineItemArrow, PartArrow};

use crate::bridge::Bridge;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Files of the table `lineitem`. Those of `part` are fewer.
const FILES: i32 = 8;
const PART_FILES: i32 = 2;
/// Tasks of a query, which read at once. DataFusion takes the number of cores unless told.
const PARTITIONS: usize = 4;

/// A query of TPC-H with its validation parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    pub name: &'static str,
    tables: &'static [&'static str],
    sql: &'static str,
}

pub const QUERIES: [Query; 3] = [
    Query {
        name: "Q1",
        tables: &["lineitem"],
        sql: "select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
                sum(l_extendedprice * (1 - l_discount)),
                sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
                avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
            from lineitem where l_shipdate <= date '1998-09-02'
            group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus",
    },
    Query {
        name: "Q6",
        tables: &["lineitem"],
        sql: "select sum(l_extendedprice * l_discount) from lineitem
            where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
                and l_discount between 0.05 and 0.07 and l_quantity < 24",
    },
    Query {
        name: "Q19",
        tables: &["lineitem", "part"],
        sql: "select sum(l_extendedprice * (1 - l_discount)) from lineitem, part
            where p_partkey = l_partkey and l_shipmode in ('AIR', 'AIR REG')
                and l_shipinstruct = 'DELIVER IN PERSON' and (
                (p_brand = 'Brand#12'
                    and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
                    and l_quantity between 1 and 11 and p_size between 1 and 5)
                or (p_brand = 'Brand#23'
                    and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
                    and l_quantity between 10 and 20 and p_size between 1 and 10)
                or (p_brand = 'Brand#34'
                    and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
                    and l_quantity between 20 and 30 and p_size between 1 and 15))",
    },
];

/// Puts the tables. Compression, groups of rows, pages, statistics and indexes of pages are as
/// DataFusion writes them.
pub async fn put_tables(store: &dyn ObjectStore, scale: f64) -> Result<()> {
    for part in 1..=FILES {
        let rows = LineItemArrow::new(LineItemGenerator::new(scale, part, FILES));
        put_file(store, "lineitem", part, rows).await?;
    }
    for part in 1..=PART_FILES {
        let rows = PartArrow::new(PartGenerator::new(scale, part, PART_FILES));
        put_file(store, "part", part, rows).await?;
    }
    Ok(())
}

async fn put_file(
    store: &dyn ObjectStore,
    table: &str,
    part: i32,
    rows: impl RecordBatchReader,
) -> Result<()> {
    let compression = Compression::ZSTD(ZstdLevel::try_new(3)?);
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties))?;
    for batch in rows {
        writer.write(&batch?)?;
    }
    writer.close()?;
    store.put(&Path::from(format!("{table}/{part}.parquet")), bytes.into()).await?;
    Ok(())
}

impl Query {
    /// Returns the answer, as a table of text. Each call opens the tables anew, so it reads their
    /// footers, too.
    pub async fn answer(self, store: Arc<dyn ObjectStore>) -> Result<String> {
        let config = SessionConfig::new().with_target_partitions(PARTITIONS);
        let context = SessionContext::new_with_config(config);
        let bucket = ObjectStoreUrl::parse("floe://bucket")?;
        context.register_object_store(bucket.as_ref(), Arc::new(Bridge(store)));
        for table in self.tables {
            let folder = format!("floe://bucket/{table}/");
            context.register_parquet(*table, folder, ParquetReadOptions::default()).await?;
        }
        let batches = context.sql(self.sql).await?.collect().await?;
        Ok(pretty_format_batches(&batches)?.to_string())
    }
}
