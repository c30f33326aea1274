"""An S3-compatible bucket as the place of artifacts. Imported only where one is configured: boto3 is an extra."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from storages.backends.s3 import S3Storage

MIB = 1024 * 1024


class Bucket(S3Storage):
    """Each object is written by one PUT, whole or not at all; what does not answer is given up on within a minute.

    Checksums of the newer S3 protocol are left out where they are not demanded, as many compatible servers lack them.
    """

    def __init__(self, **settings: Any) -> None:
        config = Config(
            connect_timeout=3,
            read_timeout=20,
            retries={"total_max_attempts": 2, "mode": "standard"},
            s3={"addressing_style": settings.pop("addressing_style", "auto")},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        whole = TransferConfig(use_threads=False, multipart_threshold=64 * MIB)
        super().__init__(client_config=config, transfer_config=whole, file_overwrite=True, **settings)

    def probe(self) -> None:
        """Raises unless the bucket answers, within a few seconds."""
        self._prober.head_bucket(Bucket=self.bucket_name)

    @cached_property
    def _prober(self) -> Any:
        quick = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 1})
        return self._create_session().client(
            "s3",
            region_name=self.region_name,
            use_ssl=self.use_ssl,
            endpoint_url=self.endpoint_url,
            config=self.client_config.merge(quick),
            verify=self.verify,
        )
