CREATE DATABASE klear_prefect;
CREATE DATABASE klear_mlflow;
